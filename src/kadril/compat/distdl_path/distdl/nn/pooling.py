"""Pools. The stride is 1 unless it is given; it is not the size of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from kadril import nn
from kadril.partition import Partition

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.partition import MPICartesianPartition
from .adapter import call_where_active, partition_beneath, per_dim
from .mixins import HaloMixin, PoolingMixin
from .module import Module

__all__ = [
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
]


class DistributedPoolBase(Module, HaloMixin, PoolingMixin):
    """A pool whose input is split in feature space; the output is partitioned like it.

    Args:
        P_x: of input and output; one axis for each dim.
        kernel_size, padding, dilation: as torch's.
        stride: from one output to the next, in inputs.
        buffer_manager: not needed here.

    Raises:
        ValueError: padding of more than half the kernel, or a dilated average.
    """

    num_dimensions = 0
    _layer_class: ClassVar[Any]

    def __init__(
        self,
        P_x: MPICartesianPartition,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        buffer_manager: object = None,
    ) -> None:
        super().__init__()
        self.P_x = P_x
        self.buffer_manager = checked_manager(buffer_manager)
        self.kernel_size = per_dim(kernel_size, self.num_dimensions, "kernel_size")
        self.stride = per_dim(stride, self.num_dimensions, "stride")
        self.padding = per_dim(padding, self.num_dimensions, "padding")
        self.dilation = per_dim(dilation, self.num_dimensions, "dilation")
        beneath = partition_beneath(P_x)
        self._pool: Any = None if beneath is None else self._make_pool(beneath)

    def _make_pool(self, P_x: Partition) -> Any:
        """Return the pool of `kadril.nn`."""
        settings = (self.kernel_size, self.stride, self.padding, self.dilation)
        return self._layer_class(P_x, *settings, what=type(self).__name__)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the pool's output."""
        return call_where_active(self._pool, input)


class DistributedAvgPoolBase(DistributedPoolBase):
    """The average of each window; padding counts."""

    def _make_pool(self, P_x: Partition) -> Any:
        if any(step != 1 for step in self.dilation):
            raise ValueError(f"{type(self).__name__}: averages have no dilation")
        settings = (self.kernel_size, self.stride, self.padding)
        return self._layer_class(P_x, *settings, what=type(self).__name__)


class DistributedMaxPool1d(DistributedPoolBase):
    """The largest element of each window; one dim of features."""

    num_dimensions = 1
    _layer_class = nn.DistributedMaxPool1d


class DistributedMaxPool2d(DistributedPoolBase):
    """The largest element of each window; two dims of features."""

    num_dimensions = 2
    _layer_class = nn.DistributedMaxPool2d


class DistributedMaxPool3d(DistributedPoolBase):
    """The largest element of each window; three dims of features."""

    num_dimensions = 3
    _layer_class = nn.DistributedMaxPool3d


class DistributedAvgPool1d(DistributedAvgPoolBase):
    """The average of each window; one dim of features."""

    num_dimensions = 1
    _layer_class = nn.DistributedAvgPool1d


class DistributedAvgPool2d(DistributedAvgPoolBase):
    """The average of each window; two dims of features."""

    num_dimensions = 2
    _layer_class = nn.DistributedAvgPool2d


class DistributedAvgPool3d(DistributedAvgPoolBase):
    """The average of each window; three dims of features."""

    num_dimensions = 3
    _layer_class = nn.DistributedAvgPool3d
