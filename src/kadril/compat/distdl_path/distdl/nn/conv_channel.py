"""Convolutions whose channels are split, and whose feature space is not.

Each worker of P_w (P_co x P_ci x 1 x ...) keeps its block of the weights; biases are kept where the
position among the input channels is 0.
"""

from __future__ import annotations

from typing import Any

from .conv_general import DistributedGeneralConvBase

__all__ = ["DistributedChannelConv1d", "DistributedChannelConv2d", "DistributedChannelConv3d"]


class DistributedChannelConvBase(DistributedGeneralConvBase):
    """The general convolution with one worker in feature space.

    Raises:
        ValueError: the feature space is split.
    """

    def _check_partitions(self, P_x: Any, P_y: Any, P_w: Any) -> None:
        if any(length > 1 for length in P_w.shape[2:]):
            raise ValueError(
                f"{type(self).__name__}: the feature space is split by {P_w.shape.tolist()}; use"
                " DistributedGeneralConv"
            )
        super()._check_partitions(P_x, P_y, P_w)


class DistributedChannelConv1d(DistributedChannelConvBase):
    """The channel convolution in one feature dim."""

    num_dimensions = 1


class DistributedChannelConv2d(DistributedChannelConvBase):
    """The channel convolution in two feature dims."""

    num_dimensions = 2


class DistributedChannelConv3d(DistributedChannelConvBase):
    """The channel convolution in three feature dims."""

    num_dimensions = 3
