"""The state of a sharded optimizer, outside of it."""
