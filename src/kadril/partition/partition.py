"""A partition: an ordered subset of the ranks, with or without a Cartesian shape.

    P_world = world_partition()                                        all ranks
    P_base = P_world.create_partition_inclusive(range(4))              some of them
    P_x = P_base.create_cartesian_topology_partition([1, 1, 2, 2])     with a shape

A rank that is not in it has it nevertheless, `active` being False: programs are written once, for
all ranks. Methods are collective over the ranks of the partition they are called on (`active` ones:
for the others there is nothing to do); those that take a second partition are collective over all
ranks of the world.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kadril.errors import StateError
from kadril.partition import metadata
from kadril.partition.group import Group, root_group
from kadril.partition.pairing import index_of, pair, rank_at, text
from kadril.transport.base import Transport
from kadril.world import World, current

__all__ = ["Partition", "world_partition"]

NOBODY = -1


class HasRanks(Protocol):
    """Another set of workers, by their world ranks: a partition, or a process set."""

    @property
    def ranks(self) -> Sequence[int] | None:
        """World ranks; None where they are not known yet."""
        ...


class Partition:
    """An ordered subset of the ranks.

    Attributes:
        ranks: world rank of each worker, in its order; the last axis runs fastest.
        shape: workers along each axis.
        dim: number of axes.
        size: number of workers.
        active: whether this process is one of them.
        rank: of this process among them; -1 where it is none.
        index: its position along each axis; None where it has none.
    """

    def __init__(
        self,
        root: Group,
        group: Group | None,
        ranks: Sequence[int],
        shape: Sequence[int] | None = None,
    ) -> None:
        self.root = root
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.shape = (
            (self.size,) if shape is None else tuple(operator.index(length) for length in shape)
        )
        self.dim = len(self.shape)
        self._group = group
        self._axis_groups: dict[tuple[int, ...], Group] = {}
        self.active = group is not None
        self.rank = NOBODY if group is None else group.transport.rank
        self.index = None if group is None else index_of(self.rank, self.shape)

    @property
    def group(self) -> Group:
        """The group of its workers.

        Raises:
            StateError: this process is none of them.
        """
        if self._group is None:
            raise StateError(
                f"this rank is not in the partition of ranks {list(self.ranks)}; check"
                " `partition.active` first"
            )
        return self._group

    @property
    def transport(self) -> Transport:
        """The transport between its workers; raises what `group` raises."""
        return self.group.transport

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return (self.root, self.ranks, self.shape) == (other.root, other.ranks, other.shape)

    def __hash__(self) -> int:
        return hash((self.ranks, self.shape))

    def __deepcopy__(self, _: dict[int, object]) -> Partition:
        """Return the partition itself: a copy of a model lies on the same ranks."""
        return self

    def __repr__(self) -> str:
        place = f"index {self.index}" if self.active else "inactive here"
        return f"Partition({text(self.shape)}, ranks {list(self.ranks)}, {place})"

    # ---- other partitions -----------------------------------------------------------------------

    def create_partition_inclusive(self, ranks: Iterable[int] | HasRanks) -> Partition:
        """Return a partition of some workers of this one, in the order given.

        Args:
            ranks: of this partition; anything with `ranks`, as a `ProcessSet`, gives world ranks.

        Raises:
            ValueError: no such rank, or one twice, or a process set that does not know its ranks.
            TypeError: a rank that is not an integer.
        """
        if isinstance(ranks, Iterable):
            places = [operator.index(rank) for rank in ranks]
            unknown = [place for place in places if not 0 <= place < self.size]
            chosen = [] if unknown else [self.ranks[place] for place in places]
        else:
            if ranks.ranks is None:
                raise ValueError(f"{ranks!r} does not know its ranks yet; register it first")
            chosen = [operator.index(rank) for rank in ranks.ranks]
            unknown = [rank for rank in chosen if rank not in self.ranks]
        if unknown:
            raise ValueError(f"{self!r} has no ranks {unknown}")
        if len(set(chosen)) < len(chosen) or not chosen:
            raise ValueError(f"a partition has at least one rank, and each rank once; got {chosen}")
        return self._subset(chosen)

    def create_partition_union(self, other: Partition) -> Partition:
        """Return a partition of this one's workers, then of those of another that are new.

        Collective over all ranks of the world.

        Raises:
            ValueError: they belong to different worlds.
        """
        self._check_same_world(other)
        ranks = self.ranks + tuple(rank for rank in other.ranks if rank not in self.ranks)
        (group,) = self.root.make([ranks])
        return Partition(self.root, group, ranks)

    def create_cartesian_topology_partition(self, shape: Sequence[int]) -> Partition:
        """Return a Cartesian partition of the same workers; of the first ones, if it needs fewer.

        Raises:
            ValueError: it has room for more, or an axis of no length.
        """
        lengths = [operator.index(length) for length in shape]
        if any(length < 1 for length in lengths) or math.prod(lengths) > self.size:
            raise ValueError(
                f"{self.size} workers cannot be arranged as {text(lengths) or 'nothing'}"
            )
        return self._subset(self.ranks[: math.prod(lengths)], lengths)

    def create_cartesian_subtopology_partition(self, remain: Sequence[bool]) -> Partition:
        """Return the line, plane, ... of workers through this one, along the axes that remain.

        Args:
            remain: for each axis, whether it does.

        Raises:
            ValueError: there are more axes, or fewer.
        """
        if len(remain) != self.dim:
            raise ValueError(
                f"{self!r} has {self.dim} axes; remain needs one value for each, got {list(remain)}"
            )
        axes = [axis for axis, stays in enumerate(remain) if stays]
        shape = [self.shape[axis] for axis in axes] or [1]
        if not self.active:
            return Partition(self.root, None, self.ranks[: math.prod(shape)], shape)
        group = self.axis_group(axes)
        return Partition(self.root, group, group.ranks, shape)

    def create_allreduction_partition(self, axes_reduce: Sequence[int]) -> Partition:
        """Return the workers that share this one's position along all other axes."""
        return self.create_cartesian_subtopology_partition(
            [axis in self._axes(axes_reduce) for axis in range(self.dim)]
        )

    def create_broadcast_partition_to(
        self, destination: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[Partition, Partition]:
        """Return the partition in which this worker sends, and the one in which it receives.

        A worker of this partition sends to all workers of the destination that it stands for (see
        `pairing.py`). The sender is rank 0 of each partition returned. One that this worker has no
        part in is inactive. Collective over all ranks of the world.

        Args:
            destination: the larger partition.
            transpose_src: whether the axes of this one are taken in reverse order.
            transpose_dest: the same, for the destination.

        Raises:
            ValueError: the shapes do not match (see `pairing.py`), or the worlds differ.
        """
        self._check_same_world(destination)
        pairs = pair(self.shape, destination.shape, transpose_src, transpose_dest)
        sets = []
        for source, workers in pairs:
            sending = self.ranks[source]
            receiving = [destination.ranks[worker] for worker in workers]
            sets.append((sending, *(rank for rank in receiving if rank != sending)))
        groups = self.root.make(sets)
        nobody = Partition(self.root, None, ())
        sender = receiver = nobody
        me = self.root.ranks[self.root.transport.rank]
        for ranks, (_, workers), group in zip(sets, pairs, groups, strict=True):
            if ranks[0] == me:
                sender = Partition(self.root, group, ranks)
            if me in [destination.ranks[worker] for worker in workers]:
                receiver = Partition(self.root, group, ranks)
        return sender, receiver

    def create_reduction_partition_to(
        self, destination: Partition, transpose_src: bool = False, transpose_dest: bool = False
    ) -> tuple[Partition, Partition]:
        """Return the partition that sums this worker's part, and the one whose sum it gets.

        The mirror image of `create_broadcast_partition_to`: rank 0 of each gets the sum.
        """
        receiver, sender = destination.create_broadcast_partition_to(
            self, transpose_dest, transpose_src
        )
        return sender, receiver

    def deactivate(self) -> None:
        """Make it inactive on this rank. Not needed: nothing is held for this object alone."""
        self._group = None
        self._axis_groups.clear()
        self.active = False
        self.rank = NOBODY
        self.index = None

    # ---- neighbours -----------------------------------------------------------------------------

    def axis_group(self, axes: Sequence[int]) -> Group:
        """Return the group of the workers that differ from this one only along some axes.

        Collective over the partition. Their order is that of the partition.
        """
        chosen = tuple(sorted(self._axes(axes)))
        group = self._axis_groups.get(chosen)
        if group is None:
            group = self._axis_groups[chosen] = self._make_axis_group(chosen)
        return group

    def _make_axis_group(self, axes: Sequence[int]) -> Group:
        kept = [axis for axis in range(self.dim) if axis not in axes]
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank, world_rank in enumerate(self.ranks):
            index = index_of(rank, self.shape)
            lines.setdefault(tuple(index[axis] for axis in kept), []).append(world_rank)
        groups = self.group.make(list(lines.values()))
        (mine,) = (group for group in groups if group is not None)
        return mine

    def cartesian_index(self, rank: int) -> tuple[int, ...]:
        """Return the position of a worker along each axis.

        Raises:
            ValueError: there is no such worker.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"{self!r} has no rank {rank}")
        return index_of(rank, self.shape)

    def cartesian_rank(self, index: Sequence[int]) -> int:
        """The worker at a position.

        Raises:
            ValueError: there is no such position.
        """
        is_inside = len(index) == self.dim and all(
            0 <= position < length for position, length in zip(index, self.shape, strict=True)
        )
        if not is_inside:
            raise ValueError(f"{self!r} has no position {tuple(index)}")
        return rank_at(index, self.shape)

    def neighbor_ranks(self, rank: int) -> list[tuple[int, int]]:
        """Return, for each axis, the workers before and after one; -1 beyond the edge.

        Raises:
            ValueError: there is no such worker.
        """
        index = self.cartesian_index(rank)
        pairs = []
        for axis, length in enumerate(self.shape):
            before, after = (
                rank_at([*index[:axis], index[axis] + step, *index[axis + 1 :]], self.shape)
                if 0 <= index[axis] + step < length
                else NOBODY
                for step in (-1, 1)
            )
            pairs.append((before, after))
        return pairs

    def indices(self) -> Iterable[tuple[int, ...]]:
        """Return the positions of all workers, in their order."""
        return itertools.product(*(range(length) for length in self.shape))

    # ---- small data -----------------------------------------------------------------------------

    def broadcast_data(
        self, data: npt.ArrayLike | None, root: int = 0, P_data: Partition | None = None
    ) -> npt.NDArray[Any] | None:
        """Send an array of one worker, whose shape the others need not know, to all of them.

        Args:
            data: the array, on the root.
            root: the worker that has it.
            P_data: the partition that `root` is a rank of, where that is another one.

        Returns:
            The array; None on ranks that are not in this partition.

        Raises:
            ValueError: there is no such root in this partition, or it has no array of numbers; on
                all workers.
        """
        owners = self if P_data is None else P_data
        if not 0 <= root < owners.size or owners.ranks[root] not in self.ranks:
            raise ValueError(f"rank {root} of {owners!r} is not in {self!r}")
        if not self.active:
            return None
        root = self.ranks.index(owners.ranks[root])
        return metadata.broadcast(self.transport, data, root)

    def allgather_data(self, data: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the arrays of all workers, flattened and concatenated."""
        return metadata.allgather(self.transport, np.asarray(data))

    def allreduce_data(self, data: npt.ArrayLike, op: str = "sum") -> npt.NDArray[Any]:
        """Return an array reduced over all workers.

        Args:
            data: of the same shape on all.
            op: "sum", "prod", "min" or "max".
        """
        return metadata.allreduce(self.transport, np.asarray(data), op)

    def print_sequential(self, value: object) -> None:
        """Print something on each worker, in their order."""
        if self.active:
            metadata.print_in_order(self.transport, f"rank {self.rank}: {value}")

    # ---- details --------------------------------------------------------------------------------

    def _axes(self, axes: Sequence[int]) -> set[int]:
        for axis in axes:
            if not -self.dim <= axis < self.dim:
                raise ValueError(f"{self!r} has no axis {axis}")
        return {axis % self.dim for axis in axes}

    def _subset(self, ranks: Sequence[int], shape: Sequence[int] | None = None) -> Partition:
        """Return a partition of some ranks of this one; collective over it."""
        group = self.group.make([ranks])[0] if self.active else None
        return Partition(self.root, group, ranks, shape)

    def _check_same_world(self, other: Partition) -> None:
        if other.root is not self.root:
            raise ValueError(f"{self!r} and {other!r} belong to different worlds")


def world_partition(world: World | None = None) -> Partition:
    """The partition of all ranks.

    Args:
        world: whose; that of `kadril.init()` where None.
    """
    root = root_group(current() if world is None else world)
    return Partition(root, root, root.ranks)
