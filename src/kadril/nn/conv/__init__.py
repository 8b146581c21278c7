"""Convolutions of tensors whose batch, space or channels are split."""
