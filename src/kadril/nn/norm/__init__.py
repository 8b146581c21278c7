"""Norms of tensors whose dims are split."""
