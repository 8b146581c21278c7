"""The plan of a box gather: which box of a tensor each worker needs, and what it is made of.

    owned    | 0 1 2 3 | 4 5 6 7 | 8 9 10 11 |         three workers along an axis
    needed     [ 0 1 2 3 4 5 ]
                   [ 2 3 4 5 6 7 8 9 ]
                           [ 6 7 8 9 10 11 . . ]       beyond the edge: see `edges.py`

A box is a product of intervals. It may reach over any number of workers, beyond the edges of the
tensor, or be less than the block. Convolutions, pools, interpolation and halo exchange differ in
the boxes alone.

A plan is pure data, and the same on all workers: every worker finds for itself what all of them do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from kadril.ops.edges import (
    check_reach,
    is_mirrored,
    is_padded_by_torch,
    pad,
    pick,
    source_interval,
    source_positions,
)
from kadril.ops.moves.move_plan import Moves, Side, plan_moves
from kadril.partition import Interval

__all__ = ["Blocks", "BoxPlan", "WorkerBoxes", "box_at", "plan_boxes"]

# For each dim, an interval at each position along its axis.
Blocks = Sequence[Sequence[Interval]]


@dataclasses.dataclass(frozen=True, eq=False)
class BoxPlan:
    """Blocks that all workers have, and boxes that they need.

    Attributes:
        shape: of the partition.
        blocks: what each position along an axis has of its dim.
        boxes: what it needs; below 0, and from the size on, is beyond the edge.
        edges: for each dim, what is beyond its ends.
        fill: the value of "zeros".
        outputs: what each position makes of its box; for layers.
        leaves_blocks: whether the gather only agrees on the structure and moves nothing: the layer
            works on its raw block and exchanges the rest itself (strips of convolutions).
        derived: what else the layer has found out, for this worker.
        is_replicated: whether all boxes are one tensor, which counts once: the adjoint takes blocks
            of it, instead of adding up what all workers have.
    """

    shape: tuple[int, ...]
    blocks: Blocks
    boxes: Blocks
    edges: tuple[str, ...]
    fill: float = 0.0
    outputs: Blocks = ()
    leaves_blocks: bool = False
    derived: Any = None
    is_replicated: bool = False
    _workers: dict[tuple[int, ...], WorkerBoxes] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Sizes of the global tensor."""
        return [along[-1].stop for along in self.blocks]

    @functools.cached_property
    def output_sizes(self) -> list[int]:
        """Sizes of the global output."""
        return [along[-1].stop for along in self.outputs]

    @functools.cached_property
    def sources(self) -> Blocks:
        """Intervals that boxes are made of, in the tensor or beyond edges that the moves know."""
        return [
            [source_interval(each, size, edge) for each in along]
            for along, size, edge in zip(self.boxes, self.sizes, self.edges, strict=True)
        ]

    @functools.cached_property
    def is_local(self) -> bool:
        """Whether every worker has the sources of its box in its own block: nothing moves."""
        return all(
            have & want == want
            for haves, wants in zip(self.blocks, self.sources, strict=True)
            for have, want in zip(haves, wants, strict=True)
        )

    @functools.cached_property
    def periods(self) -> list[int | None]:
        """Period of each dim: after how many elements it begins anew; None where it ends."""
        return [
            (size or None) if edge == "circular" else None
            for size, edge in zip(self.sizes, self.edges, strict=True)
        ]

    def worker(self, index: tuple[int, ...]) -> WorkerBoxes:
        """Return the part of the worker at a position of the partition."""
        found = self._workers.get(index)
        if found is None:
            found = self._workers[index] = WorkerBoxes(self, index)
        return found


class WorkerBoxes:
    """One worker's part of a plan.

    Attributes:
        plan: of all workers.
        index: the position of this one.
        block: what it has, for each dim.
        box: what it needs.
        source: what that is made of.
        output: what it makes of it; for layers.
        is_extended: whether the box is made of its sources by `extend`.
    """

    def __init__(self, plan: BoxPlan, index: tuple[int, ...]) -> None:
        self.plan = plan
        self.index = index
        self.block = box_at(plan.blocks, index)
        self.box = box_at(plan.boxes, index)
        self.source = box_at(plan.sources, index)
        self.output = box_at(plan.outputs, index) if plan.outputs else []
        self.is_extended = any(map(is_mirrored, plan.edges))

    @functools.cached_property
    def moves(self) -> Moves:
        """Moves of this worker: what it sends, receives, copies and fills."""
        plan = self.plan
        ranks = range(math.prod(plan.shape))
        return plan_moves(
            Side(ranks, plan.shape, plan.blocks, self.index),
            Side(ranks, plan.shape, plan.sources, self.index),
            periods=plan.periods,
            fill=plan.fill,
            is_replicated=plan.is_replicated,
        )

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """Cut the sources out of the block that has them all; a view."""
        if self.block == self.source:
            return x
        return x[
            tuple(
                slice(want.start - have.start, want.stop - have.start)
                for have, want in zip(self.block, self.source, strict=True)
            )
        ]

    def extend(self, x: torch.Tensor) -> torch.Tensor:
        """Make the box of its sources: y[i, j, ...] = x[source(i), source(j), ...]."""
        if not self.is_extended:
            return x
        edges = self.plan.edges
        if is_padded_by_torch(x, edges):
            return pad(x, self.source, self.box, self.plan.sizes, edges[-1])
        return pick(x, self.positions)

    @functools.cached_property
    def positions(self) -> list[torch.Tensor | None]:
        """Places of a box's elements among its sources, for each dim; None where unchanged."""
        found: list[torch.Tensor | None] = []
        for want, size, edge in zip(self.box, self.plan.sizes, self.plan.edges, strict=True):
            positions = source_positions(want, size, edge)
            found.append(None if positions is None else torch.tensor(positions, dtype=torch.int64))
        return found


def plan_boxes(
    shape: tuple[int, ...],
    blocks: Blocks,
    boxes: Blocks,
    edges: Sequence[str] | str = "zeros",
    *,
    fill: float = 0.0,
    outputs: Blocks = (),
    is_replicated: bool = False,
    what: str,
) -> BoxPlan:
    """Plan a box gather.

    Args:
        shape: of the partition.
        blocks: what each position along an axis has of its dim.
        boxes: what it needs, also beyond the ends of the dim.
        edges: what is beyond the ends, for each dim or for all: see `edges.EDGES`.
        fill: the value of "zeros".
        outputs: what each position makes of its box; for layers.
        is_replicated: whether all boxes are one tensor, which counts once.
        what: name of the operation in errors.

    Raises:
        ValueError: a dim has too few elements for what is needed beyond its ends.
    """
    chosen = (edges,) * len(shape) if isinstance(edges, str) else tuple(edges)
    for dim, (have, need, edge) in enumerate(zip(blocks, boxes, chosen, strict=True)):
        check_reach(need, have[-1].stop, edge, f"{what}: dim {dim}")
    return BoxPlan(shape, blocks, boxes, chosen, fill, outputs, is_replicated=is_replicated)


def box_at(blocks: Blocks, index: Sequence[int]) -> list[Interval]:
    """Return the box at a position."""
    return [along[position] for along, position in zip(blocks, index, strict=True)]
