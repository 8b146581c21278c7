"""Training that survives the loss of ranks."""

from ..._forward import forward

__getattr__ = forward("kadril.torch.elastic")
