"""Which inputs a worker needs for its outputs, for layers of one's own."""

from .conv_mixin import ConvMixin
from .halo_mixin import HaloMixin
from .pooling_mixin import PoolingMixin

__all__ = ["ConvMixin", "HaloMixin", "PoolingMixin"]
