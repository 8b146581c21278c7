"""Pools of tensors whose dims are split."""
