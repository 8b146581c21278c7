"""Elastic training."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow.elastic")
