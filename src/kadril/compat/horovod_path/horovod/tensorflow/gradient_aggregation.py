"""Gradients of several passes."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow.accumulation")
