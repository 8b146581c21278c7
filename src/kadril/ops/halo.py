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

from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import BoxPlan, plan_boxes
from kadril.ops.calling import uncompiled
from kadril.ops.edges import EDGES
from kadril.ops.structure import Structure, agree
from kadril.ops.zero_volume import nothing_of
from kadril.partition import Interval, Partition

__all__ = ["HaloExchanger", "Needed", "halo_exchange"]

# From the blocks along one dim to what each position along its axis needs of it.
Needed = Callable[[Sequence[Interval]], Sequence[Interval]]


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
        periodic: whether a dim continues at its other end, for each or for all; zeros otherwise.
        edges: what is beyond the ends of a dim instead, for each or for all: "zeros", "circular",
            "reflect" or "replicate".
        what: name of the operation in errors.

    Raises:
        ValueError: the partition does not match the tensor, nothing would be left, or a dim has
            too few elements to reflect; on all workers.
        MismatchError: the blocks do not make up a tensor; on all workers.
    """
    needs = [widen(before, after) for before, after in halo]
    return HaloExchanger(P_x, needs, periodic=periodic, edges=edges, what=what)(x)


def widen(before: int, after: int) -> Needed:
    """Need so many elements more on both sides of blocks, or fewer where negative."""
    return lambda blocks: [Interval(block.start - before, block.stop + after) for block in blocks]


class HaloExchanger:
    """A halo exchange that is done again and again: a box gather that gives new memory.

    Args:
        P_x: one axis for each dim of the tensors.
        needs: for each dim, from blocks to what is needed; None for the block itself.
        periodic: see `halo_exchange`.
        fill: for what is beyond the edge, where that is "zeros".
        edges: see `halo_exchange`.
        what: name of the operation in errors.
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
    ) -> None:
        self.P_x = P_x
        self.needs = needs
        self.edges = edges_of(P_x, periodic, edges, what)
        self.fill = fill
        self.what = what
        self.gather = BoxGather(P_x, self._plan, what, gives_views=False)
        self._known: dict[tuple[object, ...], Structure] = {}
        if len(needs) != P_x.dim:
            raise ValueError(f"{what}: {len(needs)} halos for the {P_x.dim} axes of {P_x!r}")

    @uncompiled
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange; collective over the partition."""
        if not self.P_x.active:
            return nothing_of(x, self.P_x, self.what)
        return self.gather(x).box

    def exchange(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """Exchange, with the structure already agreed on."""
        return self.gather.fetch(x, structure)

    @uncompiled
    def adjoint(self, y: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Return x* = F* y*: halos are added to the blocks they are of; collective.

        The gradient of this is the exchange itself.

        Args:
            y: of the shape of what the exchange gives this worker.
            shapes: of the blocks of all workers, in their order; the same on all.

        Raises:
            ValueError: a worker's `y` has another shape than its box, or the shapes are not those
                of a tensor on the partition; on all workers.
        """
        if not self.P_x.active:
            return nothing_of(y, self.P_x, self.what)
        structure = self._agreed(y, tuple(map(tuple, shapes)))
        return self.gather.add_back(y, structure)

    def _agreed(self, y: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> Structure:
        """Return the structure of the blocks, once all workers have told what they give back.

        They tell once for each shape: a worker that comes with another one later calls another
        collective than the others, which the transport finds out.
        """
        needs_graph = y.requires_grad and torch.is_grad_enabled()
        key = (y.shape, y.dtype, needs_graph, torch.is_grad_enabled(), shapes)
        if key not in self._known:
            self._known[key] = self._agree(y, shapes)
        return self._known[key]

    def _agree(self, y: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> Structure:
        given = agree(self.P_x, y, f"adjoint of {self.what}")
        structure = given._replace(shapes=shapes)
        plan = self.gather.plan(structure)
        for rank, index, shape in zip(given.ranks, self.P_x.indices(), given.shapes, strict=True):
            wanted = tuple(each.size for each in plan.worker(index).box)
            if shape != wanted:
                raise ValueError(
                    f"adjoint of {self.what}: rank {rank} gives a tensor of shape {list(shape)};"
                    f" what the exchange gives it has shape {list(wanted)}"
                )
        return structure

    def _plan(self, structure: Structure) -> BoxPlan:
        check_fill(self.fill, structure.dtype, self.what)
        blocks = structure.blocks(self.what)
        needed = [
            list(have if need is None else need(have))
            for have, need in zip(blocks, self.needs, strict=True)
        ]
        for dim, (have, intervals) in enumerate(zip(blocks, needed, strict=True)):
            for position, (block, interval) in enumerate(zip(have, intervals, strict=True)):
                if block.size and not interval.size:
                    raise ValueError(
                        f"{self.what}: nothing is left of dim {dim} for position {position} along"
                        f" axis {dim}, which has {block.size} elements"
                    )
        edges, what = self.edges, self.what
        return plan_boxes(self.P_x.shape, blocks, needed, edges, fill=self.fill, what=what)


def edges_of(
    P_x: Partition,
    periodic: Sequence[bool] | bool,
    edges: Sequence[str] | str | None,
    what: str,
) -> list[str]:
    """Return what is beyond the ends of each dim.

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
    """Refuse a value beyond the edge that a dtype does not have.

    Raises:
        ValueError: names both.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (low <= fill <= high and float(fill).is_integer()):
        raise ValueError(f"{what}: what is beyond the edge is {fill}, which {dtype} does not have")
