"""The plan of moves: every worker owns a box of a global tensor, and gets the box that it needs.

    owned   | 0 1 2 3 | 4 5 6 7 |            needed    [ 0 1 2 3 4 5 ]
              worker 0  worker 1                           [ 2 3 4 5 6 7 0 1 ]   (periodic)

Boxes that are needed may overlap, reach over any number of workers, and go beyond the edge of the
tensor: there they are filled with a constant, or continue at the other end. Halo exchange and
repartition are both this, with different boxes.

As an operator, y_r[i] = x[i] for all i in the box that worker r needs. Its adjoint adds what came
back for each element: x*[i] = sum_r y*_r[i].

Boxes are products of intervals, so who sends what to whom is found dim by dim. A plan is pure data:
it knows neither tensors nor transports.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from kadril.partition import Interval
from kadril.partition.pairing import rank_at

__all__ = ["Move", "Moves", "Side", "Slices", "num_elements", "plan_moves"]

Slices = tuple[slice, ...]


class Run(NamedTuple):
    """Elements that lie together on both sides."""

    source: int
    target: int
    size: int


class Move(NamedTuple):
    """Boxes that go to, or come from, a peer, in one message."""

    peer: int
    boxes: tuple[Slices, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """Everything that one worker sends, receives, copies and fills.

    Attributes:
        sends: boxes of what it owns.
        recvs: boxes of what it gets.
        copies: boxes (owned, got) that it has itself.
        shape: of what it owns; None where it owns nothing.
        out_shape: of what it gets; None where it gets nothing.
        fill: value of what nobody owns.
        edges: boxes that make up what nobody owns; they may overlap.
        is_one_to_one: whether everything that is owned is needed by exactly one worker.
        is_replicated: whether what all workers get is one tensor, which counts once: in the
            adjoint each takes its own part of it, and nothing moves.
    """

    sends: tuple[Move, ...]
    recvs: tuple[Move, ...]
    copies: tuple[tuple[Slices, Slices], ...]
    shape: tuple[int, ...] | None
    out_shape: tuple[int, ...] | None
    fill: float
    edges: tuple[Slices, ...]
    is_one_to_one: bool
    is_replicated: bool

    def __deepcopy__(self, _: dict[int, object]) -> Moves:
        """Return the plan itself: it does not change."""
        return self

    @functools.cached_property
    def without_fill(self) -> Moves:
        """The plan with zeros for what nobody owns."""
        return self if self.fill == 0 else dataclasses.replace(self, fill=0.0)

    @functools.cached_property
    def keeps_whole(self) -> bool:
        """Whether this worker gets all that it owns, once."""
        whole = tuple(slice(0, size) for size in self.shape or ())
        return len(self.copies) == 1 and self.copies[0][0] == whole

    @functools.cached_property
    def num_returning(self) -> int:
        """Elements that come back from others in the adjoint."""
        return sum(num_elements(box) for _, boxes in self.sends for box in boxes)


class Side(NamedTuple):
    """One side of the moves: blocks on a partition.

    Attributes:
        ranks: of the workers in the transport, in the order of the partition.
        shape: of the partition.
        blocks: for each dim, the interval at each position along its axis.
        me: this process's worker, or None.
    """

    ranks: Sequence[int]
    shape: tuple[int, ...]
    blocks: Sequence[Sequence[Interval]]
    me: tuple[int, ...] | None

    def frozen(self) -> Side:
        """Return the same side, as a key."""
        return Side(tuple(self.ranks), self.shape, tuple(map(tuple, self.blocks)), self.me)

    @property
    def number(self) -> int:
        """Rank of this process in the transport; -1 where it has no worker."""
        return -1 if self.me is None else self.ranks[rank_at(self.me, self.shape)]

    def box(self) -> list[Interval] | None:
        """Return the box of this process; None where it has no worker."""
        if self.me is None:
            return None
        return [blocks[position] for blocks, position in zip(self.blocks, self.me, strict=True)]


def find_runs(needed: Interval, owned: Interval, period: int | None) -> list[Run]:
    """Find the parts of an interval that another one has, in the order of the first."""
    if period is None:
        shifts: Sequence[int] = (0,)
    else:
        first = (needed.start - owned.stop) // period
        last = (needed.stop - owned.start) // period
        shifts = range(first * period, (last + 1) * period, period)
    runs = []
    for shift in shifts:
        both = needed & owned.shifted(shift)
        if both.size:
            start = both.start - shift - owned.start
            runs.append(Run(start, both.start - needed.start, both.size))
    return runs


def plan_moves(
    owners: Side,
    takers: Side,
    *,
    periods: Sequence[int | None],
    fill: float = 0.0,
    is_one_to_one: bool = False,
    is_replicated: bool = False,
) -> Moves:
    """Plan what this process has to do; layers with the same blocks share it.

    Args:
        owners: who owns what; boxes do not overlap.
        takers: boxes that each rank needs.
        periods: for each dim, after how many elements it begins anew; None where it ends.
        fill: for what nobody owns.
        is_one_to_one: whether the boxes that are needed do not overlap, and leave nothing out.
        is_replicated: whether they are one tensor, which counts once.
    """
    return find_moves(
        owners.frozen(), takers.frozen(), tuple(periods), fill, is_one_to_one, is_replicated
    )


@functools.lru_cache(maxsize=256)
def find_moves(
    owners: Side,
    takers: Side,
    periods: tuple[int | None, ...],
    fill: float,
    is_one_to_one: bool,
    is_replicated: bool,
) -> Moves:
    """Plan for sides that are keys; see `plan_moves`."""
    owned, needed = owners.box(), takers.box()
    outgoing: dict[int, list[Slices]] = {}
    incoming: dict[int, list[Slices]] = {}
    edges: list[Slices] = []
    if owned is not None:
        runs = [
            [find_runs(theirs, mine, period) for theirs in blocks]
            for blocks, mine, period in zip(takers.blocks, owned, periods, strict=True)
        ]
        for peer, found in meet(takers, runs):
            outgoing[peer] = [source_slices(box) for box in itertools.product(*found)]
    if needed is not None:
        runs = [
            [find_runs(mine, theirs, period) for theirs in blocks]
            for blocks, mine, period in zip(owners.blocks, needed, periods, strict=True)
        ]
        for peer, found in meet(owners, runs):
            incoming[peer] = [target_slices(box) for box in itertools.product(*found)]
        edges = find_edges(needed, [blocks[-1].stop for blocks in owners.blocks], periods)
    me = owners.number if owners.me is not None else takers.number
    copies = zip(outgoing.pop(me, []), incoming.pop(me, []), strict=True)
    return Moves(
        tuple(Move(peer, tuple(boxes)) for peer, boxes in outgoing.items()),
        tuple(Move(peer, tuple(boxes)) for peer, boxes in incoming.items()),
        tuple(copies),
        None if owned is None else tuple(each.size for each in owned),
        None if needed is None else tuple(each.size for each in needed),
        fill,
        tuple(edges),
        is_one_to_one,
        is_replicated,
    )


def find_edges(
    needed: Sequence[Interval], sizes: Sequence[int], periods: Sequence[int | None]
) -> list[Slices]:
    """Find the boxes, within one that is needed, that lie beyond the edge of the tensor."""
    edges: list[Slices] = []
    whole = [slice(0, each.size) for each in needed]
    for dim, (want, size, period) in enumerate(zip(needed, sizes, periods, strict=True)):
        if period is not None and size > 0:
            continue
        have = want & Interval(0, size)
        before, after = have.start - want.start, have.stop - want.start
        for part in (slice(0, before), slice(after, want.size)):
            if part.start < part.stop:
                edges.append((*whole[:dim], part, *whole[dim + 1 :]))
    return edges


def meet(side: Side, runs: Sequence[Sequence[list[Run]]]) -> list[tuple[int, list[list[Run]]]]:
    """Find the workers of a side with which something moves, and the runs for each dim."""
    positions = [[position for position, found in enumerate(per_dim) if found] for per_dim in runs]
    return [
        (
            side.ranks[rank_at(place, side.shape)],
            [runs[dim][position] for dim, position in enumerate(place)],
        )
        for place in itertools.product(*positions)
    ]


def source_slices(box: Sequence[Run]) -> Slices:
    """Return a box among what the owner has."""
    return tuple(slice(run.source, run.source + run.size) for run in box)


def target_slices(box: Sequence[Run]) -> Slices:
    """Return a box among what the taker gets."""
    return tuple(slice(run.target, run.target + run.size) for run in box)


def num_elements(box: Slices) -> int:
    """Return the number of elements of a box."""
    return math.prod(each.stop - each.start for each in box)
