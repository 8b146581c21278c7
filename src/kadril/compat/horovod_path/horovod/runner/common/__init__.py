"""Parts of the runner that scripts import."""
