"""`distribute`: an ordinary model on the blocks of a partition."""
