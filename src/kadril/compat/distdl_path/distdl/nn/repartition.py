"""Repartition: the blocks of a tensor on one partition become its blocks on another."""

from __future__ import annotations

import torch

from kadril import ops

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.meeting import meet
from ..backends.mpi.partition import MPIPartition
from .module import Module
from .nothing import without_elements

__all__ = ["Repartition"]


class Repartition(Module):
    """Changes who holds which block; blocks of the input may have any sizes, outputs are balanced.

    Args:
        P_x: where the tensor is; one axis for each dim.
        P_y: where it goes.
        preserve_batch: whether a worker that gets nothing returns a tensor of shape (b, 0) or (0,).
        buffer_manager: not needed here.

    Raises:
        ValueError: the partitions have different numbers of axes.
    """

    def __init__(
        self,
        P_x: MPIPartition,
        P_y: MPIPartition,
        preserve_batch: bool = True,
        buffer_manager: object = None,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y = P_x, P_y
        self.preserve_batch = preserve_batch
        self.buffer_manager = checked_manager(buffer_manager)
        met = meet(P_x, P_y)
        self._move: ops.Repartitioner | None = None
        if met is not None:
            self._move = ops.Repartitioner(met[0], met[1], preserve_batch=preserve_batch)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_r[i] = x[i] for all i in the block of worker r of `P_y`."""
        move = self._move
        if move is None or not (move.P_x.active or move.P_y.active):
            return input.clone()
        return move(input if move.P_x.active else without_elements(input))
