"""Convolutions whose input is split in feature space."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..backends.mpi.partition import MPICartesianPartition
from .adapter import partition_beneath
from .conv_module import ConvModule
from .owned_parameters import replicate

__all__ = ["DistributedFeatureConv1d", "DistributedFeatureConv2d", "DistributedFeatureConv3d"]


class DistributedFeatureConvBase(ConvModule):
    """A convolution on 1 x 1 x P_{d-1} x ... x P_0; the output is partitioned like the input.

    `weight` and `bias` are parameters on the first worker of `P_x`, and without elements on the
    others: they are broadcast at every call, and their gradients summed.

    Args:
        P_x: of input and output; one axis for each dim.
        in_channels: of the global input.
        out_channels: of the global output.
        kernel_size, stride, padding, padding_mode, dilation, groups, bias: as torch's.
        buffer_manager: not needed here.

    Raises:
        ValueError: the channels are split.
    """

    def __init__(
        self,
        P_x: MPICartesianPartition,
        in_channels: int = 1,
        out_channels: int = 1,
        kernel_size: int | Sequence[int] = 1,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        padding_mode: str = "zeros",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        buffer_manager: object = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            padding_mode,
            dilation,
            groups,
            bias,
            buffer_manager,
        )
        self.P_x = P_x
        self.P_wb_cart = P_x.create_partition_inclusive([0]).create_cartesian_topology_partition(
            [1]
        )
        self.serial = P_x.size == 1
        drawn = self._draw(self.in_channels, self.out_channels)
        self._shapes = {name: value.shape for name, value in drawn.named_parameters()}
        for name in ("weight", "bias"):
            self._register_owned(name, getattr(drawn, name), self.P_wb_cart.active)
        self._beneath = partition_beneath(P_x)
        self._convolve = None if self._beneath is None else self._convolution(self._beneath)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the convolution's output."""
        if self._beneath is None or not self._beneath.active or self._convolve is None:
            return input.clone()
        parameters = {
            name: replicate(
                getattr(self, name), shape, self._beneath.group, f"{name} of {type(self).__name__}"
            )
            for name, shape in self._shapes.items()
        }
        return self._convolve(parameters, input)


class DistributedFeatureConv1d(DistributedFeatureConvBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedFeatureConv2d(DistributedFeatureConvBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedFeatureConv3d(DistributedFeatureConvBase):
    """Three dims of features."""

    num_dimensions = 3
