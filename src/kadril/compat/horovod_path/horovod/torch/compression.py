"""Compressors."""

from .._forward import forward

__getattr__ = forward("kadril.torch.compression")
