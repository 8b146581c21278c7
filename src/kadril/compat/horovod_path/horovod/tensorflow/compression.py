"""Gradient compression."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow.compression")
