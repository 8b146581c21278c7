"""The window of a pool, which is that of a convolution."""

from __future__ import annotations

from .conv_mixin import ConvMixin

__all__ = ["PoolingMixin"]


class PoolingMixin(ConvMixin):
    """From an output to the first and the last input that it is made of."""
