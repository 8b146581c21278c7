"""Repartition: the blocks of a tensor on one partition become its blocks on another."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from kadril import ops
from kadril.partition import balanced_intervals

from ..backends.mpi.buffer import checked_manager
from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPIPartition
from ..utilities.slicing import range_index
from .adapter import as_zero_volume
from .module import Module

__all__ = ["Repartition"]

Overlap: TypeAlias = tuple[tuple[slice, ...] | None, Any, int | str | None]


class Repartition(Module):
    """A movement of blocks of any sizes on one partition to balanced blocks on another.

    Args:
        P_x: where the tensor is; one axis for each dim.
        P_y: where it goes.
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
        return self._overlaps_of(self.P_x, self.P_y)

    @property
    def P_y_to_x_overlaps(self) -> list[Overlap]:  # noqa: N802 - DistDL's name
        """Return the boxes that this worker receives; see the class."""
        return self._overlaps_of(self.P_y, self.P_x)

    def _overlaps_of(self, P_mine: MPIPartition, P_theirs: MPIPartition) -> list[Overlap]:
        """Return the overlaps of this worker's block on one partition with blocks on the other."""
        move = self._move
        if move is None or move.structure is None or not P_mine.active:
            return []
        x_blocks = move.structure.blocks(move.what)
        y_blocks = [
            balanced_intervals(have[-1].stop, length)
            for have, length in zip(x_blocks, move.P_y.shape, strict=True)
        ]
        mine, theirs = (x_blocks, y_blocks) if P_mine is self.P_x else (y_blocks, x_blocks)
        # As DistDL numbers the workers of both: those of P_x come first.
        union = list(dict.fromkeys([*move.P_x.ranks, *move.P_y.ranks]))
        ranks = (move.P_y if P_mine is self.P_x else move.P_x).ranks
        my_box = [each[position] for each, position in zip(mine, P_mine.index, strict=True)]
        found: list[Overlap] = []
        for rank, index in zip(ranks, range_index(P_theirs.shape.tolist()), strict=True):
            box = [each[position] for each, position in zip(theirs, index, strict=True)]
            both = [have & want for have, want in zip(my_box, box, strict=True)]
            if not all(each.size for each in both):
                found.append((None, None, None))
                continue
            slices = tuple(
                slice(each.start - have.start, each.stop - have.start)
                for each, have in zip(both, my_box, strict=True)
            )
            is_self = P_theirs.active and tuple(P_theirs.index) == tuple(index)
            partner = "self" if is_self else union.index(rank)
            found.append((slices, tuple(each.size for each in both), partner))
        return found

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """y_r[i] = x[i] for all i in the block of worker r of `P_y`."""
        move = self._move
        if move is None or not (move.P_x.active or move.P_y.active):
            return input.clone()
        return move(input if move.P_x.active else as_zero_volume(input))
