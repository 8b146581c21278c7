"""Moves: every worker owns a box of a global tensor, and gets the box that it needs.

    owned   | 0 1 2 3 | 4 5 6 7 |            needed    [ 0 1 2 3 4 5 ]
              worker 0  worker 1                           [ 2 3 4 5 6 7 0 1 ]   (periodic)

Boxes that are needed may overlap, reach over any number of workers, and go beyond the edge of the
tensor: there they are filled with a constant, or go on at the other end. Halo exchange and
repartition are both this, with different boxes.

As an operator, y_r[i] = x[i] for all i in the box that worker r needs. Its adjoint adds what came
back for each element: x*[i] = sum_r y*_r[i].

Boxes are products of intervals, so who sends what to whom is found dim by dim.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril import _native
from kadril.ops.linear import apply_operator
from kadril.ops.packing import (
    Slices,
    exchange_packed,
    num_elements,
    split_messages,
    unpack_add,
    unpack_into,
)
from kadril.ops.shm_moves import adjoint_plan, forward_plan, memory_for, run_plan
from kadril.partition import Interval
from kadril.partition.pairing import rank_at
from kadril.transport.base import Transport
from kadril.transport.shared_memory import SharedMemory

__all__ = ["MoveOperator", "Moves", "Side", "move", "plan_moves", "run_moves"]


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
    """What one worker has to do.

    Attributes:
        sends: boxes of what it owns.
        recvs: boxes of what it gets.
        copies: boxes (owned, got) that it has itself.
        shape: of what it owns; None where it owns nothing.
        out_shape: of what it gets; None where it gets nothing.
        fill: value of what nobody owns.
        edges: boxes that make up what nobody owns; they may overlap.
        is_one_to_one: whether everything that is owned is needed by exactly one worker.
    """

    sends: tuple[Move, ...]
    recvs: tuple[Move, ...]
    copies: tuple[tuple[Slices, Slices], ...]
    shape: tuple[int, ...] | None
    out_shape: tuple[int, ...] | None
    fill: float
    edges: tuple[Slices, ...]
    is_one_to_one: bool
    _plans: dict[torch.dtype, _native.MovePlan] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def __deepcopy__(self, _: dict[int, object]) -> Moves:
        """Itself: it does not change."""
        return self

    def forward_plan(self, dtype: torch.dtype) -> _native.MovePlan:
        """For the native core, where workers have agreed on the structure already."""
        plan = self._plans.get(dtype)
        if plan is None:
            plan = self._plans[dtype] = forward_plan(self, dtype)
        return plan

    @functools.cached_property
    def adjoint_plan(self) -> _native.MovePlan:
        """The same, backwards."""
        return adjoint_plan(self, copies=self.is_one_to_one or self.keeps_whole)

    @functools.cached_property
    def without_fill(self) -> Moves:
        """The same, with zeros for what nobody owns."""
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
        ranks: number of each worker in the transport, in the order of the partition.
        shape: of the partition.
        blocks: for each dim, the interval at each position along its axis.
        me: this process's worker, or None.
    """

    ranks: Sequence[int]
    shape: tuple[int, ...]
    blocks: Sequence[Sequence[Interval]]
    me: tuple[int, ...] | None

    def frozen(self) -> Side:
        """The same, as a key."""
        return Side(tuple(self.ranks), self.shape, tuple(map(tuple, self.blocks)), self.me)

    @property
    def number(self) -> int:
        """Of this process in the transport; -1 where it has no worker."""
        return -1 if self.me is None else self.ranks[rank_at(self.me, self.shape)]

    def box(self) -> list[Interval] | None:
        """The box of this process."""
        if self.me is None:
            return None
        return [blocks[position] for blocks, position in zip(self.blocks, self.me, strict=True)]


def find_runs(needed: Interval, owned: Interval, period: int | None) -> list[Run]:
    """The parts of an interval that another one has, in the order of the first."""
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
) -> Moves:
    """What this process has to do; layers with the same blocks share it.

    Args:
        owners: who owns what; boxes do not overlap.
        takers: who needs what.
        periods: for each dim, after how many elements it begins anew; None where it ends.
        fill: for what nobody owns.
        is_one_to_one: whether the boxes that are needed do not overlap, and leave nothing out.
    """
    return find_moves(owners.frozen(), takers.frozen(), tuple(periods), fill, is_one_to_one)


@functools.lru_cache(maxsize=256)
def find_moves(
    owners: Side,
    takers: Side,
    periods: tuple[int | None, ...],
    fill: float,
    is_one_to_one: bool,
) -> Moves:
    """As `plan_moves`."""
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
    )


def find_edges(
    needed: Sequence[Interval], sizes: Sequence[int], periods: Sequence[int | None]
) -> list[Slices]:
    """The boxes, within one that is needed, that lie beyond the edge of the tensor."""
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
    """The workers of a side with which there is something to move, and the runs for each dim."""
    positions = [[position for position, found in enumerate(per_dim) if found] for per_dim in runs]
    return [
        (
            side.ranks[rank_at(place, side.shape)],
            [runs[dim][position] for dim, position in enumerate(place)],
        )
        for place in itertools.product(*positions)
    ]


def source_slices(box: Sequence[Run]) -> Slices:
    """A box among what the owner has."""
    return tuple(slice(run.source, run.source + run.size) for run in box)


def target_slices(box: Sequence[Run]) -> Slices:
    """A box among what the taker gets."""
    return tuple(slice(run.target, run.target + run.size) for run in box)


def run_moves(moves: Moves, transport: Transport, x: torch.Tensor, what: str) -> torch.Tensor:
    """y = F x."""
    y = x.new_empty(0 if moves.out_shape is None else moves.out_shape)
    memory = memory_for(transport, x)
    if memory is not None:
        run_plan(moves.forward_plan(x.dtype), memory, x, y, what, copies=moves.copies)
        return y
    for edge in moves.edges:
        y[edge] = moves.fill
    for mine, box in moves.copies:
        y[box] = x[mine]
    came = exchange_packed(transport, moves.sends, x, moves.recvs, y, what)
    for (_, boxes), received in zip(moves.recvs, came, strict=True):
        unpack_into(y, boxes, received)
    return y


def run_adjoint(moves: Moves, transport: Transport, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y."""
    if moves.is_one_to_one:
        return run_inverse(moves, transport, y, what)
    memory = memory_for(transport, y)
    if memory is not None:
        return run_adjoint_through(moves, memory, y, what)
    x = begin_adjoint(moves, y)
    came = exchange_packed(transport, moves.recvs, y, moves.sends, x, what, beside=True)
    for (_, boxes), received in zip(moves.sends, came, strict=True):
        unpack_add(x, boxes, received)
    return x


def begin_adjoint(moves: Moves, y: torch.Tensor) -> torch.Tensor:
    """What a worker has of F* y itself."""
    if moves.keeps_whole:
        return y[moves.copies[0][1]].clone(memory_format=torch.contiguous_format)
    x = y.new_zeros(0 if moves.shape is None else moves.shape)
    for mine, box in moves.copies:
        x[mine] += y[box]
    return x


def run_adjoint_through(
    moves: Moves, memory: SharedMemory, y: torch.Tensor, what: str
) -> torch.Tensor:
    """x = F* y, through shared memory: what comes back is added afterwards."""
    if moves.keeps_whole and moves.shape is not None:
        x = y.new_empty(moves.shape)
        copies = tuple((box, mine) for mine, box in moves.copies)
    else:
        x = begin_adjoint(moves, y)
        copies = ()
    came = y.new_empty(moves.num_returning)
    run_plan(moves.adjoint_plan, memory, y, x, what, copies=copies, beside=came)
    for (_, boxes), received in zip(moves.sends, split_messages(came, moves.sends), strict=True):
        unpack_add(x, boxes, received)
    return x


def run_inverse(moves: Moves, transport: Transport, y: torch.Tensor, what: str) -> torch.Tensor:
    """x = F* y, where each element has one place only: nothing is added."""
    x = y.new_empty(0 if moves.shape is None else moves.shape)
    memory = memory_for(transport, y)
    if memory is not None:
        copies = tuple((box, mine) for mine, box in moves.copies)
        run_plan(moves.adjoint_plan, memory, y, x, what, copies=copies)
        return x
    for mine, box in moves.copies:
        x[mine] = y[box]
    came = exchange_packed(transport, moves.recvs, y, moves.sends, x, what)
    for (_, boxes), received in zip(moves.sends, came, strict=True):
        unpack_into(x, boxes, received)
    return x


class MoveOperator(NamedTuple):
    """Moves as a linear operator.

    Attributes:
        moves: what to do.
        transport: between all owners and takers.
        what: for errors.
        dtype: of the tensor, which a rank that owns nothing of it cannot tell from its own.
        nothing: shape of what a rank gets that needs nothing.
    """

    moves: Moves
    transport: Transport
    what: str
    dtype: torch.dtype
    nothing: tuple[int, ...]

    @property
    def tangent(self) -> MoveOperator:
        """The derivative: a constant that stands for what nobody owns has none."""
        return self._replace(moves=self.moves.without_fill)

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y = F x."""
        if self.moves.shape is None:
            x = x.new_empty(0, dtype=self.dtype)
        y = run_moves(self.moves, self.transport, x, what)
        return y if self.moves.out_shape is not None else y.reshape(self.nothing)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """x* = F* y*."""
        x = run_adjoint(self.moves, self.transport, y, what)
        return x if self.moves.shape is not None else None


def move(
    x: torch.Tensor,
    moves: Moves,
    transport: Transport,
    what: str,
    *,
    requires_grad: bool,
    dtype: torch.dtype | None = None,
    nothing: tuple[int, ...] = (0,),
) -> torch.Tensor:
    """Get the box that is needed; collective over the transport.

    Args:
        x: what this process owns; anything without elements where it owns nothing.
        moves: what to do.
        transport: between all owners and takers.
        what: for errors.
        requires_grad: whether any owner's tensor does. Then every rank takes part in the backward
            pass, also one that gave nothing.
        dtype: of the tensor; that of `x` where None.
        nothing: shape, without elements, of the result where this process needs nothing.
    """
    operator = MoveOperator(moves, transport, what, dtype or x.dtype, nothing)
    return apply_operator(operator, x, requires_grad=requires_grad)
