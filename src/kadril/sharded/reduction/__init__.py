"""How gradients reach their owners."""
