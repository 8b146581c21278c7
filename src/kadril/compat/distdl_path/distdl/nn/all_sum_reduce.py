"""All-sum-reduce along axes of a partition."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril import nn

from ..backends.mpi.partition import MPIPartition
from .adapter import call_where_active, partition_beneath
from .module import Module

__all__ = ["AllSumReduce"]


class AllSumReduce(Module):
    """The sum over lines of workers, on each of them; its own adjoint. Never in place.

    Args:
        P_x: the partition.
        axes_reduce: axes of the partition to sum over.
        axes_keep: all other axes of the partition, instead.

    Raises:
        ValueError: not exactly one of the two was given.
    """

    def __init__(
        self,
        P_x: MPIPartition,
        axes_reduce: Sequence[int] | None = None,
        axes_keep: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if (axes_reduce is None) == (axes_keep is None):
            raise ValueError("give either axes_reduce or axes_keep")
        self.P_x = P_x
        self.axes_reduce = None if axes_reduce is None else [int(axis) for axis in axes_reduce]
        self.axes_keep = None if axes_keep is None else [int(axis) for axis in axes_keep]
        beneath = partition_beneath(P_x)
        self._sum: nn.AllSumReduce | None = None
        if beneath is not None:
            self._sum = nn.AllSumReduce(beneath, self.axes_reduce, self.axes_keep)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_r = sum of x_s over the workers s in line with r."""
        return call_where_active(self._sum, input)
