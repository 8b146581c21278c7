"""Synchronized batch normalization."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow.sync_batch_norm")
