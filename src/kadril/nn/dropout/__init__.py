"""Dropout that does not depend on the partition."""
