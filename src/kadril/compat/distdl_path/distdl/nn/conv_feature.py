"""Convolutions whose input is split in feature space."""

from __future__ import annotations

from typing import Any

import torch

from ..backends.mpi.partition import MPICartesianPartition
from .adapter import partition_beneath
from .conv_module import ConvModule

__all__ = ["DistributedFeatureConv1d", "DistributedFeatureConv2d", "DistributedFeatureConv3d"]


class DistributedFeatureConvBase(ConvModule):
    """A convolution on 1 x 1 x P_{d-1} x ... x P_0; the output is partitioned like the input.

    `weight` and `bias` are parameters on the first worker of `P_x`, and zero-volume tensors on the
    others: they are replicated at every call, and their gradients summed.

    Args:
        P_x: of input and output; one axis for each dim.
        arguments, settings: see `ConvModule`.

    Raises:
        ValueError: the channels are split.
    """

    def __init__(self, P_x: MPICartesianPartition, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.P_x = P_x
        first = P_x.create_partition_inclusive([0])
        self.P_wb_cart = first.create_cartesian_topology_partition([1])
        self.serial = P_x.size == 1
        drawn = self._draw(self.in_channels, self.out_channels)
        for name in ("weight", "bias"):
            self._register_owned(name, getattr(drawn, name), self.P_wb_cart.active)
        self._shapes = {name: value.shape for name, value in drawn.named_parameters()}
        beneath = partition_beneath(P_x)
        self._users = beneath.group if beneath is not None and beneath.active else None
        self._convolve = None if beneath is None else self._convolution(beneath)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the convolution's output."""
        if self._convolve is None or self._users is None:
            return input.clone()
        return self._convolve(self._replicated_parameters(), input)


class DistributedFeatureConv1d(DistributedFeatureConvBase):
    """The feature convolution in one feature dim."""

    num_dimensions = 1


class DistributedFeatureConv2d(DistributedFeatureConvBase):
    """The feature convolution in two feature dims."""

    num_dimensions = 2


class DistributedFeatureConv3d(DistributedFeatureConvBase):
    """The feature convolution in three feature dims."""

    num_dimensions = 3
