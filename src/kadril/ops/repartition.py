"""Repartition: the blocks of a tensor on one partition become its blocks on another.

    P_x = 2 x 1                P_y = 1 x 2

    +-----------+              +-----+-----+
    |  rank 0   |              |     |     |         y_r[i] = x[i]          for i in block r of P_y
    +-----------+     -->      |  0  |  1  |         x*_r[i] = y*[i]        for i in block r of P_x
    |  rank 1   |              |     |     |
    +-----------+              +-----+-----+

Input blocks may have any sizes; output blocks are balanced, or have the sizes that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.ops.announcement import announce
from kadril.ops.moves import Moves, Side, move, plan_moves
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Interval, Partition, balanced_intervals, intervals_of
from kadril.partition.pairing import text

__all__ = ["Repartitioner", "repartition"]


def repartition(
    x: torch.Tensor,
    P_x: Partition,
    P_y: Partition,
    *,
    sizes: Sequence[Sequence[int] | None] | None = None,
    what: str = "Repartition",
) -> torch.Tensor:
    """Change who holds which block of a tensor; collective over the workers of both partitions.

    The union of the two partitions is made at the first use of this pair: collective over the
    world, as `Partition.create_partition_union`.

    Args:
        x: block of the global tensor on `P_x`; without elements on other ranks.
        P_x: where it is.
        P_y: where it goes.
        sizes: for each dim, block sizes along its axis of `P_y`; balanced where None.
        what: for errors.

    Returns:
        The block on `P_y`; a zero-volume tensor on other ranks.

    Raises:
        ValueError: the partitions do not fit to the tensor.
        MismatchError: the blocks of `x` do not fit together.
    """
    return Repartitioner(P_x, P_y, sizes=sizes, what=what)(x)


class Repartitioner:
    """A repartition that is done again and again.

    Args and errors as of `repartition`; making one is collective over the world.
    """

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        *,
        sizes: Sequence[Sequence[int] | None] | None = None,
        what: str = "Repartition",
    ) -> None:
        if P_x.dim != P_y.dim:
            raise ValueError(
                f"{what}: {text(P_x.shape)} and {text(P_y.shape)} have different numbers of axes"
            )
        self.P_x = P_x
        self.P_y = P_y
        self.sizes = sizes
        self.what = what
        self.union = P_x.create_partition_union(P_y)
        self._plans = PlanCache()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Move the blocks."""
        if not self.union.active:
            return x.clone()
        if self.P_x == self.P_y and self.sizes is None and self.P_x.size == 1:
            return x.clone()
        mine = agree(self.P_x, x, self.what) if self.P_x.active else None
        structure = announce(self.union, mine, self.P_x, self.what)
        moves = self._plans.get(structure, lambda: self._plan(structure))
        if mine is None:
            x = x.new_empty(0, dtype=structure.dtype)
        return move(
            x, moves, self.union.transport, self.what, requires_grad=structure.requires_grad
        )

    def _plan(self, structure: Structure) -> Moves:
        blocks = structure.blocks(self.what)
        targets: list[list[Interval]] = []
        for dim, (have, length) in enumerate(zip(blocks, self.P_y.shape, strict=True)):
            size = have[-1].stop
            wanted = None if self.sizes is None else self.sizes[dim]
            if wanted is None and size < length:
                raise ValueError(
                    f"{self.what}: dim {dim} has {size} elements, too few for {length} workers"
                    f" along axis {dim} of {text(self.P_y.shape)}"
                )
            if wanted is not None and (len(wanted) != length or sum(wanted) != size):
                raise ValueError(
                    f"{self.what}: sizes {list(wanted)} for dim {dim} do not make up {size}"
                    f" elements over {length} workers"
                )
            targets.append(
                balanced_intervals(size, length) if wanted is None else intervals_of(wanted)
            )
        numbers = {rank: number for number, rank in enumerate(self.union.ranks)}
        return plan_moves(
            Side([numbers[r] for r in self.P_x.ranks], self.P_x.shape, blocks, self.P_x.index),
            Side([numbers[r] for r in self.P_y.ranks], self.P_y.shape, targets, self.P_y.index),
            periods=[None] * len(blocks),
        )
