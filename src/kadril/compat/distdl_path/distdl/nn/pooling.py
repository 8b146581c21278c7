"""Pools. The stride is 1 unless it is given; it is not the size of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.partition import MPICartesianPartition
from .mixins import HaloMixin, PoolingMixin
from .module import Module
from .window import Window, as_tuple, window_exchanger

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
    fill = 0.0

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
        self.kernel_size = as_tuple(kernel_size, self.num_dimensions, "kernel_size")
        self.stride = as_tuple(stride, self.num_dimensions, "stride")
        self.padding = as_tuple(padding, self.num_dimensions, "padding")
        self.dilation = as_tuple(dilation, self.num_dimensions, "dilation")
        settings = zip(self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        windows = [Window(*each) for each in settings]
        what = type(self).__name__
        if any(2 * window.padding > window.kernel for window in windows):
            raise ValueError(f"{what}: padding may be half the kernel at most; got {windows}")
        core = P_x._core
        self._exchange = (
            None
            if core is None or not core.active
            else window_exchanger(core, windows, what, fill=self.fill)
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the pool's output."""
        if self._exchange is None:
            return input.clone()
        return self._pool(self._exchange(input))

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class DistributedMaxPoolBase(DistributedPoolBase):
    """The largest element of each window."""

    fill = float("-inf")

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        pool: Any = {
            1: functional.max_pool1d,
            2: functional.max_pool2d,
            3: functional.max_pool3d,
        }[self.num_dimensions]
        y: torch.Tensor = pool(x, self.kernel_size, self.stride, 0, self.dilation)
        return y


class DistributedAvgPoolBase(DistributedPoolBase):
    """The average of each window; padding counts."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if any(step != 1 for step in self.dilation):
            raise ValueError(f"{type(self).__name__}: averages have no dilation")

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        pool: Any = {
            1: functional.avg_pool1d,
            2: functional.avg_pool2d,
            3: functional.avg_pool3d,
        }[self.num_dimensions]
        y: torch.Tensor = pool(x, self.kernel_size, self.stride, 0)
        return y


class DistributedMaxPool1d(DistributedMaxPoolBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedMaxPool2d(DistributedMaxPoolBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedMaxPool3d(DistributedMaxPoolBase):
    """Three dims of features."""

    num_dimensions = 3


class DistributedAvgPool1d(DistributedAvgPoolBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedAvgPool2d(DistributedAvgPoolBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedAvgPool3d(DistributedAvgPoolBase):
    """Three dims of features."""

    num_dimensions = 3
