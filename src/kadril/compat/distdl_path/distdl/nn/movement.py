"""The base of broadcast and sum-reduce: blocks move between a partition and a larger one."""

from __future__ import annotations

import torch

from kadril import ops

from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPIPartition
from .adapter import as_zero_volume
from .module import Module

__all__ = ["Movement"]


class Movement(Module):
    """Base of `Broadcast`, whose docstring describes the arguments, and of `SumReduce`."""

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
        self._move: ops.Broadcaster | ops.SumReducer | None = None
        self._in_P_x = self._in_P_y = False
        partitions = in_common_group(P_x, P_y)
        if partitions is not None:
            source, target = partitions
            self._move = self._mover(source, target, transpose_src, transpose_dest, preserve_batch)
            self._in_P_x, self._in_P_y = source.active, target.active

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block on `P_y`; a copy of the input on workers in neither partition."""
        if self._move is None or not (self._in_P_x or self._in_P_y):
            return input.clone()
        return self._move(input if self._in_P_x else as_zero_volume(input))
