"""What broadcast and sum-reduce share: blocks move between a partition and a larger one."""

from __future__ import annotations

import torch

from kadril import ops

from ..backends.mpi.meeting import meet
from ..backends.mpi.partition import MPIPartition
from .module import Module
from .nothing import without_elements

__all__ = ["Movement"]


class Movement(Module):
    """Base of `Broadcast`, which says what its arguments are, and `SumReduce`."""

    _mover: type[ops.Broadcaster] | type[ops.SumReducer]

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
        self._move: ops.Broadcaster | ops.SumReducer | None = None
        if met is not None:
            self._move = self._mover(met[0], met[1], transpose_src, transpose_dest, preserve_batch)
        self._gives = met is not None and met[0].active
        self._gets = met is not None and met[1].active

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block on `P_y`; a copy of the input on workers that are in neither partition."""
        if self._move is None or not (self._gives or self._gets):
            return input.clone()
        return self._move(input if self._gives else without_elements(input))
