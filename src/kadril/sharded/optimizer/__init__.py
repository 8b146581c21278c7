"""The optimizer of this rank's pieces, and what its step needs."""
