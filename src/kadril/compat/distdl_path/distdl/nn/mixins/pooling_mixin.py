"""The window of a pool, which is that of a convolution."""

from __future__ import annotations

from .conv_mixin import ConvMixin

__all__ = ["PoolingMixin"]


class PoolingMixin(ConvMixin):
    """The first and the last input that an output is made of."""
