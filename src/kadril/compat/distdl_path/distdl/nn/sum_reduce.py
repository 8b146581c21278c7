"""Sum-reduce from a partition to a smaller one."""

from __future__ import annotations

import torch

from kadril import ops

from ..backends.mpi.meeting import meet
from ..backends.mpi.partition import MPIPartition
from .module import Module
from .nothing import without_elements

__all__ = ["SumReduce"]


class SumReduce(Module):
    """Sums of the blocks of all workers that one stands for; the adjoint is `Broadcast`.

    Args and errors as of `Broadcast`; here `P_x` is the larger partition.
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
        self._move: ops.SumReducer | None = None
        if met is not None:
            self._move = ops.SumReducer(
                met[0], met[1], transpose_src, transpose_dest, preserve_batch
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_r = sum of x_s over all workers s that r stands for."""
        move = self._move
        if move is None or not (move.few.active or move.lots.active):
            return input.clone()
        return move(input if move.lots.active else without_elements(input))
