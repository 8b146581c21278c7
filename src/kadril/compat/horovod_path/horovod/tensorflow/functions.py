"""Broadcasts of variables and objects."""

from .._forward import forward

__getattr__ = forward("kadril.tensorflow")
