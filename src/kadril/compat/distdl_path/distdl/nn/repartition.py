"""Repartition: the blocks of a tensor on one partition become its blocks on another."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from kadril import ops
from kadril.ops.moves.move_plan import Side, plan_moves
from kadril.partition import balanced_intervals

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPIPartition
from ..utilities.slicing import compute_nd_slice_shape
from .adapter import as_zero_volume
from .module import Module

__all__ = ["Repartition"]

Overlap: TypeAlias = tuple[tuple[slice, ...] | None, Any, int | str | None]


class Repartition(Module):
    """A movement of blocks of any sizes on one partition to balanced blocks on another.

    Args:
        P_x: where the tensor is; one axis for each dim.
        P_y: partition to which the tensor goes.
        preserve_batch: whether a worker that gets nothing returns a tensor of shape (b, 0) or (0,).
        buffer_manager: not needed here.

    Attributes:
        P_x_to_y_overlaps: what this worker sends, once the layer was called: for each worker of
            `P_y`, the slices of its block, their shape, and the worker's rank among all of both
            partitions, or "self"; (None, None, None) for a worker that gets nothing.
        P_y_to_x_overlaps: the same of what it receives, for each worker of `P_x`.

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
        partitions = in_common_group(P_x, P_y)
        self._move: ops.Repartitioner | None = None
        if partitions is not None:
            self._move = ops.Repartitioner(*partitions, preserve_batch=preserve_batch)

    @property
    def P_x_to_y_overlaps(self) -> list[Overlap]:  # noqa: N802 - DistDL's name
        """Return the boxes that this worker sends; see the class."""
        return self._overlaps(of_sent=True)

    @property
    def P_y_to_x_overlaps(self) -> list[Overlap]:  # noqa: N802 - DistDL's name
        """Return the boxes that this worker receives; see the class."""
        return self._overlaps(of_sent=False)

    def _overlaps(self, *, of_sent: bool) -> list[Overlap]:
        """Return the overlaps of this worker's block on one partition with blocks on the other."""
        move = self._move
        if move is None or move.structure is None:
            return []
        x_blocks = move.structure.blocks(move.what)
        y_blocks = [
            balanced_intervals(have[-1].stop, length)
            for have, length in zip(x_blocks, move.P_y.shape, strict=True)
        ]
        # As DistDL numbers the workers of both: those of P_x come first.
        union = list(dict.fromkeys([*move.P_x.ranks, *move.P_y.ranks]))
        x, y = (
            Side([union.index(rank) for rank in P.ranks], P.shape, blocks, P.index)
            for P, blocks in ((move.P_x, x_blocks), (move.P_y, y_blocks))
        )
        mine, theirs = (x, y) if of_sent else (y, x)
        if mine.me is None:
            return []
        moves = plan_moves(x, y, periods=[None] * len(x_blocks))
        found: dict[int, Overlap] = {}
        for peer, (box,) in moves.sends if of_sent else moves.recvs:
            found[peer] = (box, compute_nd_slice_shape(box), peer)
        for owned, got in moves.copies:
            box = owned if of_sent else got
            found[mine.number] = (box, compute_nd_slice_shape(box), "self")
        return [found.get(worker, (None, None, None)) for worker in theirs.ranks]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_r[i] = x[i] for all i in the block of worker r of `P_y`."""
        move = self._move
        if move is None or not (move.P_x.active or move.P_y.active):
            return input.clone()
        return move(input if move.P_x.active else as_zero_volume(input))
