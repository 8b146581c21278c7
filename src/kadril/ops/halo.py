"""Halo exchange: every worker gets its block and what it needs around it.

    blocks        | . . . . | . . . . | . . . . |
    with halos    | . . . . 4 5 |
                        [ 2 3 | . . . . | 8 9 ]         beyond the edge: see `edges.py`
                                [ 6 7 | . . . . | 0 0 ]

What is needed may reach beyond the direct neighbour, and may be less than the block. Corners come
with the rest: boxes go straight to whoever needs them, in one exchange.

    y_r[i] = x[i]  for i in the box of worker r         x*[i] = sum_r y*_r[i]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kadril.ops.calling import uncompiled
from kadril.ops.edges import EDGES, check_reach, hull_of, pick, sources_of
from kadril.ops.mover import Mover
from kadril.ops.moves import Moves, Side, move, plan_moves
from kadril.ops.structure import PlanCache, Structure
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Interval, Partition

__all__ = ["HaloExchanger", "Needed", "halo_exchange"]

# From the blocks along one dim to what each position along its axis needs of it.
Needed = Callable[[Sequence[Interval]], Sequence[Interval]]

Sources = list[torch.Tensor | None]


@uncompiled
def halo_exchange(
    x: torch.Tensor,
    P_x: Partition,
    halo: Sequence[tuple[int, int]],
    *,
    periodic: Sequence[bool] | bool = False,
    edges: Sequence[str] | str | None = None,
    what: str = "HaloExchange",
) -> torch.Tensor:
    """Give each block its surroundings; collective over the partition. Not in place.

    Args:
        x: block of the global tensor on `P_x`; returned as a copy on other ranks.
        P_x: one axis for each dim.
        halo: for each dim, elements before and after the block; negative ones cut it.
        periodic: whether a dim goes on at its other end, for each or for all; zeros otherwise.
        edges: what is beyond the ends of a dim instead, for each or for all: "zeros", "circular",
            "reflect" or "replicate".
        what: for errors.

    Raises:
        ValueError: the partition does not fit to the tensor, nothing would be left, or a dim has
            too few elements to reflect; on all workers.
        MismatchError: the blocks do not fit together; on all workers.
    """
    needs = [widen(before, after) for before, after in halo]
    return HaloExchanger(P_x, needs, periodic=periodic, edges=edges, what=what)(x)


def widen(before: int, after: int) -> Needed:
    """Blocks with as many elements more on both sides, or fewer where negative."""
    return lambda blocks: [Interval(block.start - before, block.stop + after) for block in blocks]


class HaloExchanger:
    """A halo exchange that is done again and again.

    Args:
        P_x: one axis for each dim of the tensors.
        needs: for each dim, from blocks to what is needed; None for the block itself.
        periodic: as of `halo_exchange`.
        fill: for what is beyond the edge, where that is "zeros".
        edges: as of `halo_exchange`.
        what: for errors.
        plans: where plans are kept; with others that have the same settings and partition.
    """

    def __init__(
        self,
        P_x: Partition,
        needs: Sequence[Needed | None],
        *,
        periodic: Sequence[bool] | bool = False,
        fill: float = 0.0,
        edges: Sequence[str] | str | None = None,
        what: str = "HaloExchange",
        plans: PlanCache | None = None,
    ) -> None:
        self.P_x = P_x
        self.needs = needs
        self.edges = edges_of(P_x, periodic, edges, what)
        self.periodic = [edge == "circular" for edge in self.edges]
        self.picks = any(edge in ("reflect", "replicate") for edge in self.edges)
        self.fill = fill
        self.what = what
        self._plans = PlanCache() if plans is None else plans
        self._mover = Mover(P_x, P_x, self._moves, what)
        if len(needs) != P_x.dim:
            raise ValueError(f"{what}: {len(needs)} halos for the {P_x.dim} axes of {P_x!r}")

    @uncompiled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange."""
        if not self.P_x.active:
            return nothing_of(x, self.P_x, self.what)
        y, structure = self._mover(x)
        return pick(y, self._look_up(structure)[1]) if self.picks else y

    def exchange(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """Exchange, with the structure already agreed on."""
        moves, sources = self._look_up(structure)
        y = move(x, moves, self.P_x.transport, self.what, requires_grad=structure.requires_grad)
        return pick(y, sources) if self.picks else y

    def _look_up(self, structure: Structure) -> tuple[Moves, Sources]:
        return self._plans.get(
            structure, lambda: (self._plan(structure), self._find_sources(structure))
        )

    def _moves(self, structure: Structure) -> Moves:
        return self._look_up(structure)[0]

    def _needed(self, structure: Structure) -> list[list[Interval]]:
        """For each dim, what each position along its axis needs, also beyond the edge."""
        blocks = structure.blocks(self.what)
        needed = [
            list(have if need is None else need(have))
            for have, need in zip(blocks, self.needs, strict=True)
        ]
        for dim, (have, intervals) in enumerate(zip(blocks, needed, strict=True)):
            where = f"{self.what}: dim {dim}"
            for position, (block, interval) in enumerate(zip(have, intervals, strict=True)):
                if block.size and not interval.size:
                    raise ValueError(
                        f"{self.what}: nothing is left of dim {dim} for position {position} along"
                        f" axis {dim}, which has {block.size} elements"
                    )
            check_reach(intervals, have[-1].stop, self.edges[dim], where)
        return needed

    def _plan(self, structure: Structure) -> Moves:
        check_fill(self.fill, structure.dtype, self.what)
        blocks = structure.blocks(self.what)
        hulls = [
            [hull_of(each, have[-1].stop, edge) for each in needed]
            for have, needed, edge in zip(blocks, self._needed(structure), self.edges, strict=True)
        ]
        return plan_moves(
            Side(range(self.P_x.size), self.P_x.shape, blocks, self.P_x.index),
            Side(range(self.P_x.size), self.P_x.shape, hulls, self.P_x.index),
            periods=[
                (have[-1].stop or None) if wraps else None
                for have, wraps in zip(blocks, self.periodic, strict=True)
            ],
            fill=self.fill,
        )

    def _find_sources(self, structure: Structure) -> Sources:
        """For each dim, what to pick from what came, where it is not the box itself."""
        found: Sources = []
        if not self.picks:
            return found
        for have, needed, edge, position in zip(
            structure.blocks(self.what),
            self._needed(structure),
            self.edges,
            self.P_x.index or (),
            strict=True,
        ):
            size, mine = have[-1].stop, needed[position]
            sources = sources_of(mine, size, edge)
            start = hull_of(mine, size, edge).start
            found.append(None if sources is None else sources - start)
        return found


def edges_of(
    P_x: Partition,
    periodic: Sequence[bool] | bool,
    edges: Sequence[str] | str | None,
    what: str,
) -> list[str]:
    """What is beyond the ends of each dim.

    Raises:
        ValueError: there is no such edge, or not one for each dim.
    """
    if edges is None:
        wraps = [periodic] * P_x.dim if isinstance(periodic, bool) else list(periodic)
        edges = ["circular" if each else "zeros" for each in wraps]
    chosen = [edges] * P_x.dim if isinstance(edges, str) else list(edges)
    for edge in chosen:
        if edge not in EDGES:
            raise ValueError(f"{what}: an edge is one of {', '.join(EDGES)}, not {edge!r}")
    if len(chosen) != P_x.dim:
        raise ValueError(f"{what}: {len(chosen)} edges for the {P_x.dim} axes of {P_x!r}")
    return chosen


def check_fill(fill: float, dtype: torch.dtype, what: str) -> None:
    """Raise `ValueError` where a dtype does not have the value that stands beyond the edge."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (low <= fill <= high and float(fill).is_integer()):
        raise ValueError(f"{what}: what is beyond the edge is {fill}, which {dtype} does not have")
