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

from kadril.ops.calling import uncompiled
from kadril.ops.moves.move_plan import Moves, Side, plan_moves
from kadril.ops.moves.mover import Mover, Planned
from kadril.ops.structure import Structure
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Interval, Partition, balanced_intervals, intervals_of
from kadril.partition.pairing import text

__all__ = ["Repartitioner", "position_of", "repartition"]


@uncompiled
def repartition(
    x: torch.Tensor,
    P_x: Partition,
    P_y: Partition,
    *,
    sizes: Sequence[Sequence[int] | None] | None = None,
    preserve_batch: bool = True,
    what: str = "Repartition",
) -> torch.Tensor:
    """Change who holds which block of a tensor; collective over the workers of both partitions.

    Where neither has all workers of the other their union is made at the first use of this pair,
    which is collective over the world.

    Args:
        x: block of the global tensor on `P_x`; without elements on other ranks.
        P_x: partition on which the tensor is.
        P_y: partition to which it goes.
        sizes: for each dim, block sizes along its axis of `P_y`; balanced where None.
        preserve_batch: whether a rank that is not in `P_y` gets a zero-volume tensor with the first
            size of its `x`, or with none.
        what: name of the operation in errors.

    Returns:
        The block on `P_y`; a zero-volume tensor on other ranks.

    Raises:
        ValueError: the partitions do not match the tensor, or a rank that is not in `P_x` has
            elements; on all ranks of both.
        MismatchError: the blocks of `x` do not make up a tensor; on all ranks of both.
    """
    mover = Repartitioner(P_x, P_y, sizes=sizes, preserve_batch=preserve_batch, what=what)
    return mover(x)


class Repartitioner:
    """A repartition that is done again and again.

    For arguments and errors see `repartition`; making one is collective over the world.

    Attributes:
        structure: of the tensor that was moved last; None before, and on ranks that have no part.
    """

    def __init__(
        self,
        P_x: Partition,
        P_y: Partition,
        *,
        sizes: Sequence[Sequence[int] | None] | None = None,
        preserve_batch: bool = True,
        what: str = "Repartition",
    ) -> None:
        if P_x.dim != P_y.dim:
            raise ValueError(
                f"{what}: {text(P_x.shape)} and {text(P_y.shape)} have different numbers of axes"
            )
        if sizes is not None and len(sizes) != P_y.dim:
            raise ValueError(f"{what}: sizes for {len(sizes)} dims, and {P_y!r} has {P_y.dim} axes")
        self.P_x = P_x
        self.P_y = P_y
        self.sizes = sizes
        self.what = what
        self.structure: Structure | None = None
        self.union = union_of(P_x, P_y)
        self._mover = Mover(self.union, P_x, self._planned, what, preserve_batch=preserve_batch)

    @uncompiled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Move the blocks; collective over the workers of both partitions."""
        if not self.union.active:
            return nothing_of(x, self.union, self.what)
        moved = self._mover(x)
        self.structure = moved.structure
        if moved.y is None:
            raise AssertionError("a repartition always moves")
        return moved.y

    def result_blocks(self, structure: Structure) -> list[list[Interval]]:
        """Return the blocks on `P_y` of a tensor: for each dim, those along its axis.

        Raises:
            ValueError: the tensor has too few elements, or other sizes than were asked for.
            MismatchError: the blocks on `P_x` do not make up a tensor.
        """
        targets: list[list[Interval]] = []
        for dim, (have, length) in enumerate(
            zip(structure.blocks(self.what), self.P_y.shape, strict=True)
        ):
            size = have[-1].stop
            wanted = None if self.sizes is None else self.sizes[dim]
            if wanted is None and size < length > 1:
                raise ValueError(
                    f"{self.what}: dim {dim} has {size} elements, too few for {length} workers"
                    f" along axis {dim} of {text(self.P_y.shape)}"
                )
            if wanted is not None and not fills(wanted, length, size):
                raise ValueError(
                    f"{self.what}: sizes {list(wanted)} for dim {dim} do not make up {size}"
                    f" elements over {length} workers"
                )
            targets.append(
                balanced_intervals(size, length) if wanted is None else intervals_of(wanted)
            )
        return targets

    def moves_of(self, rank: int, structure: Structure) -> Moves:
        """Return what a rank of the world sends and receives of a tensor; nothing is moved.

        Raises:
            ValueError, MismatchError: see `result_blocks`.
        """
        numbers = {each: number for number, each in enumerate(self.union.ranks)}
        before, after = (
            Side([numbers[each] for each in P.ranks], P.shape, blocks, position_of(rank, P))
            for P, blocks in (
                (self.P_x, structure.blocks(self.what)),
                (self.P_y, self.result_blocks(structure)),
            )
        )
        return plan_moves(before, after, periods=[None] * self.P_x.dim, is_one_to_one=True)

    def _planned(self, structure: Structure) -> Planned:
        if self.union.rank is None:
            raise AssertionError("only workers of the two partitions move blocks")
        return Planned(self.moves_of(self.union.ranks[self.union.rank], structure))


def position_of(rank: int, P: Partition) -> tuple[int, ...] | None:
    """Return the position of a rank of the world on a partition; None where it is no worker."""
    return P.cartesian_index(P.ranks.index(rank)) if rank in P.ranks else None


def fills(sizes: Sequence[int], num_blocks: int, size: int) -> bool:
    """Whether blocks make up a dim."""
    return len(sizes) == num_blocks and sum(sizes) == size and min(sizes) >= 0


def union_of(P_x: Partition, P_y: Partition) -> Partition:
    """Return the workers of both; one of the two where it has them all.

    Collective over the world.
    """
    if P_x.root is P_y.root:
        for one, other in ((P_x, P_y), (P_y, P_x)):
            if set(other.ranks) <= set(one.ranks):
                return one
    return P_x.create_partition_union(P_y)
