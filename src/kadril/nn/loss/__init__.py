"""Losses of tensors whose dims are split: one number that all workers know."""
