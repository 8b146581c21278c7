"""The collectives, handles and basics."""

from .._forward import forward

__getattr__ = forward("kadril.torch")
