"""Helpers of Horovod's TensorFlow modules."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow.util")
