"""Convolutions whose input is split in feature space."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..backends.mpi.partition import MPICartesianPartition
from .broadcast import Broadcast
from .conv_settings import ConvModule
from .stored import store

__all__ = ["DistributedFeatureConv1d", "DistributedFeatureConv2d", "DistributedFeatureConv3d"]


class DistributedFeatureConvBase(ConvModule):
    """A convolution on 1 x 1 x P_{d-1} x ... x P_0; the output is partitioned like the input.

    `weight` and `bias` are parameters on the first worker of `P_x`, and without elements on the
    others: they are broadcast at every call, and their gradients summed.

    Args:
        P_x: of input and output; one axis for each dim.
        in_channels: of the global input.
        out_channels: of the global output.
        kernel_size, stride, padding, padding_mode, dilation, groups, bias: as torch's; several
            workers pad with zeros, or circular.
        buffer_manager: not needed here.

    Raises:
        NotImplementedError: another mode of padding, on several workers.
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
        drawn = self._drawn(self.in_channels, self.out_channels, self.use_bias)
        store(self, "weight", drawn.weight, self.P_wb_cart.active)
        store(self, "bias", drawn.bias, self.P_wb_cart.active)
        self.w_broadcast = Broadcast(self.P_wb_cart, P_x, preserve_batch=False)
        self.b_broadcast = Broadcast(self.P_wb_cart, P_x, preserve_batch=False)
        self._exchange = self._exchanger(P_x._core)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the convolution's output."""
        if not self.P_x.active:
            return input.clone()
        weight = self.w_broadcast(self.weight)
        bias = self.b_broadcast(self.bias) if self.use_bias else None
        x = self._pad(input) if self._exchange is None else self._exchange(input)
        return self._convolve(x, weight, bias)


class DistributedFeatureConv1d(DistributedFeatureConvBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedFeatureConv2d(DistributedFeatureConvBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedFeatureConv3d(DistributedFeatureConvBase):
    """Three dims of features."""

    num_dimensions = 3
