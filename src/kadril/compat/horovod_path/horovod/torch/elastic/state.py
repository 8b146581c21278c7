"""State that is kept, restored and sent to all ranks."""

from ..._forward import forward

__getattr__ = forward("kadril.torch.elastic")
