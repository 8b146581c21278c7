"""SyncBatchNorm."""

from .._forward import forward

__getattr__ = forward("kadril.torch.sync_batch_norm")
