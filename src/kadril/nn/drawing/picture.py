"""Pictures of layers: who owns which block, and who sends what to whom, from their plans.

The plan of a box gather (`ops/box_plan.py`) has all workers. That of a repartition is one worker's
view (`ops/moves/move_plan.py`), and is made once for each of them. Nothing is sent, and no other
rank is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril.nn.box_layer import BoxLayer
from kadril.nn.conv.conv_layer import ConvLayer
from kadril.nn.primitives import Primitive
from kadril.ops import HaloExchanger, Repartitioner
from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import Blocks, WorkerBoxes, box_at
from kadril.ops.moves.move_plan import Moves, num_elements
from kadril.ops.repartition import position_of
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import index_of, text

__all__ = ["Picture", "WorkerView", "look_at"]


class WorkerView(NamedTuple):
    """Blocks and messages of one worker.

    Attributes:
        rank: of the world.
        block: what it owns, for each dim; None where it owns nothing.
        result: what it gets, for each dim; None where it gets nothing.
        messages: elements that it sends, by the world rank that gets them.
    """

    rank: int
    block: list[Interval] | None
    result: list[Interval] | None
    messages: dict[int, int]

    def halo(self, dim: int) -> tuple[int, int] | None:
        """Return how many elements it gets before and after its block; negative for fewer."""
        if self.block is None or self.result is None:
            return None
        have, want = self.block[dim], self.result[dim]
        return have.start - want.start, want.stop - have.stop


class Picture(NamedTuple):
    """Blocks and messages of all workers, for one layer and one tensor.

    Attributes:
        what: the layer.
        shape: of the global tensor.
        before: shape of the partition that it lies on.
        after: shape of the partition of the result.
        views: of all workers.
        is_halo: whether results lie around the blocks, and not elsewhere.
    """

    what: str
    shape: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    views: list[WorkerView]
    is_halo: bool


def look_at(layer: object, shape: Sequence[int]) -> Picture:
    """Describe what a layer does with a tensor of some global shape, whose blocks are balanced.

    Raises:
        TypeError: a layer that moves no blocks of its input, or not by one exchange.
        ValueError: the tensor does not match the layer.
    """
    mover = mover_of(layer)
    if mover is None:
        raise TypeError(
            "draw supports layers that exchange halos (convolutions, pools, upsampling,"
            f" HaloExchange) and Repartition, not {type(layer).__name__}"
        )
    structure = balanced_structure(mover.P_x, shape)
    what = str(getattr(layer, "what", type(layer).__name__))
    if isinstance(mover, Repartitioner):
        return look_at_repartition(mover, structure, what, tuple(shape))
    return look_at_halo(mover, structure, what, shape)


def look_at_halo(
    mover: BoxGather, structure: Structure, what: str, shape: Sequence[int]
) -> Picture:
    """Describe all workers of a halo exchange."""
    P_x = mover.P_x
    plan = mover.make_plan(structure)
    views = [view_of(P_x, rank, plan.worker(index_of(rank, P_x.shape))) for rank in range(P_x.size)]
    return Picture(what, tuple(shape), P_x.shape, P_x.shape, views, True)


def mover_of(layer: object) -> BoxGather | Repartitioner | None:
    """Return what moves the blocks of a layer; None where nothing does."""
    if isinstance(layer, (HaloExchanger, BoxLayer, ConvLayer)):
        return layer.gather
    if isinstance(layer, Repartitioner):
        return layer
    return mover_of(layer.operator) if isinstance(layer, Primitive) else None


def view_of(P_x: Partition, rank: int, mine: WorkerBoxes) -> WorkerView:
    """Describe one worker of a halo exchange."""
    return WorkerView(P_x.ranks[rank], mine.block, mine.box, messages_of(mine.moves, P_x.ranks))


def messages_of(moves: Moves, ranks: Sequence[int]) -> dict[int, int]:
    """Return the elements that a worker sends, by the world rank that gets them."""
    return {ranks[peer]: sum(map(num_elements, boxes)) for peer, boxes in moves.sends}


def look_at_repartition(
    mover: Repartitioner, structure: Structure, what: str, shape: tuple[int, ...]
) -> Picture:
    """Describe all workers of a repartition."""
    have, want = structure.blocks(what), mover.result_blocks(structure)
    ranks = mover.union.ranks
    views = [
        WorkerView(
            rank,
            block_at(have, position_of(rank, mover.P_x)),
            block_at(want, position_of(rank, mover.P_y)),
            messages_of(mover.moves_of(rank, structure), ranks),
        )
        for rank in ranks
    ]
    return Picture(what, shape, mover.P_x.shape, mover.P_y.shape, views, False)


def block_at(blocks: Blocks, index: tuple[int, ...] | None) -> list[Interval] | None:
    """Return the block at a position; None where there is no worker."""
    return None if index is None else box_at(blocks, index)


def balanced_structure(P_x: Partition, shape: Sequence[int]) -> Structure:
    """Return the structure of a tensor whose blocks are balanced.

    Raises:
        ValueError: the partition does not have one axis for each dim.
    """
    if len(shape) != P_x.dim:
        raise ValueError(
            f"a tensor of {len(shape)} dims cannot lie on a partition of shape {text(P_x.shape)}"
        )
    blocks = [balanced_intervals(size, n) for size, n in zip(shape, P_x.shape, strict=True)]
    shapes = tuple(
        tuple(each[place].size for each, place in zip(blocks, index, strict=True))
        for index in P_x.indices()
    )
    return Structure(P_x.shape, shapes, torch.float32, False, P_x.ranks)
