"""Broadcast from a partition to a larger one."""

from __future__ import annotations

import torch

from kadril import ops

from ..backends.mpi.meeting import meet
from ..backends.mpi.partition import MPIPartition
from .module import Module
from .nothing import without_elements

__all__ = ["Broadcast"]


class Broadcast(Module):
    """Copies of blocks for all workers that theirs stands for; the adjoint is `SumReduce`.

    Args:
        P_x: the smaller partition.
        P_y: the larger one; from the right, each axis has the size of that of `P_x`, or that is 1.
        transpose_src: whether the axes of `P_x` are taken in reverse order.
        transpose_dest: the same, for `P_y`.
        preserve_batch: whether a worker that gets nothing returns a tensor of shape (b, 0) or (0,).

    Raises:
        ValueError: the shapes do not fit.
    """

    def __init__(
        self,
        P_x: MPIPartition,
        P_y: MPIPartition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y = P_x, P_y
        self.transpose_src, self.transpose_dest = transpose_src, transpose_dest
        self.preserve_batch = preserve_batch
        met = meet(P_x, P_y)
        self._move: ops.Broadcaster | None = None
        if met is not None:
            self._move = ops.Broadcaster(
                met[0], met[1], transpose_src, transpose_dest, preserve_batch
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_s = x_r for all workers s that r stands for."""
        move = self._move
        if move is None or not (move.few.active or move.lots.active):
            return input.clone()
        return move(input if move.few.active else without_elements(input))
