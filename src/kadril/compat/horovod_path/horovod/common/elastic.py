"""State of an elastic job, without a framework."""

from .._forward import forward

__getattr__ = forward("kadril.torch.elastic")
