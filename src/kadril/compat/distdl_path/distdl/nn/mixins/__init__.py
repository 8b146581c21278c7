"""Mixins for layers of users: the inputs that a worker needs for its outputs."""

from .conv_mixin import ConvMixin
from .halo_mixin import HaloMixin
from .pooling_mixin import PoolingMixin

__all__ = ["ConvMixin", "HaloMixin", "PoolingMixin"]
