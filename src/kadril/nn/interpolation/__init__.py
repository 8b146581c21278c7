"""Interpolation of tensors whose dims are split."""
