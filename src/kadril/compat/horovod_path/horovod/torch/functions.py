"""Broadcasts of parameters, optimizer states and objects."""

from .._forward import forward

__getattr__ = forward("kadril.torch")
