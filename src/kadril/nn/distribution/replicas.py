"""Moves between blocks and replicas of the whole.

    gather      y = [x_0 x_1 x_2]  on each worker        x*_r = y*[block r]
    cut         y_r = x[block r]                         x* = [y*_0 y*_1 y*_2]  on each worker

A replicated vector counts once, so the two are each other's adjoint: each worker takes its own
block of the gradient of what was gathered, which all of them have, and nothing is summed. (With
replicas that count separately, the adjoint of a gather is a reduce-scatter.) So what follows a
gather has to be the same on all workers: the same layers, the same loss, `backward()` on each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.ops import zero_volume_tensor
from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import Blocks, BoxPlan, box_at, plan_boxes
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import Reverse, apply_operator
from kadril.ops.moves.carriers import MoveOperator
from kadril.ops.structure import PlanCache, Structure
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["Cutter", "WholeGatherer", "block_of", "whole_of"]


def block_of(x: torch.Tensor, P_x: Partition) -> torch.Tensor:
    """Return this worker's block of a tensor that it has whole: y_r = x[block r]. Nothing is sent.

    Args:
        x: the global tensor; only this worker's block of it is read.
        P_x: one axis for each dim; a tensor of fewer dims, such as labels, lies on the first axes.

    Returns:
        A copy of the balanced block; a zero-volume tensor on other ranks. On each worker, only this
        block of `x` gets a gradient: `x` is data here, not a replicated result (see `Cutter`).

    Raises:
        ValueError: a dim has fewer elements than there are workers along its axis, or the
            partition has fewer axes than the tensor has dims.
    """
    if P_x.index is None:
        return zero_volume_tensor(dtype=x.dtype, device=x.device)
    if x.dim() > P_x.dim:
        raise ValueError(
            f"block_of: a tensor of {x.dim()} dims on a partition of shape {text(P_x.shape)};"
            " give the partition one axis for each dim"
        )
    lengths = P_x.shape[: x.dim()]
    blocks = balanced_blocks(x.shape, lengths, "block_of")
    mine = box_at(blocks, P_x.index[: x.dim()])
    return x[tuple(slice(each.start, each.stop) for each in mine)].clone()


@uncompiled
def whole_of(y: torch.Tensor, P_y: Partition, *, what: str = "whole_of") -> torch.Tensor:
    """Return the whole of a tensor on each worker: z = [y_0 y_1 ...]; collective over `P_y`.

    The result is one replicated tensor: a loss made of it on every worker is one loss, and each of
    them calls `backward()`. The adjoint takes blocks: y*_r = z*[block r].

    Args:
        y: block of the global tensor; blocks may have any sizes.
        P_y: one axis for each dim.
        what: name of the movement in errors.

    Returns:
        The global tensor; a copy of `y` on other ranks.

    Raises:
        ValueError: the partition does not have one axis for each dim.
        MismatchError: the blocks do not fit together.
    """
    return WholeGatherer(P_y, what)(y)


def balanced_blocks(
    sizes: Sequence[int], lengths: Sequence[int], what: str
) -> list[list[Interval]]:
    """Return the balanced blocks of a tensor, for each dim.

    Raises:
        ValueError: a dim has too few elements.
    """
    for dim, (size, length) in enumerate(zip(sizes, lengths, strict=True)):
        if size < length:
            raise ValueError(
                f"{what}: dim {dim} has {size} elements, too few for {length} workers along axis"
                f" {dim} of {text(lengths)}"
            )
    return [balanced_intervals(size, length) for size, length in zip(sizes, lengths, strict=True)]


def plan_whole(shape: tuple[int, ...], blocks: Blocks, what: str) -> BoxPlan:
    """Plan the gather after which every worker has everything."""
    whole = [[Interval(0, along[-1].stop)] * len(along) for along in blocks]
    return plan_boxes(shape, blocks, whole, is_replicated=True, what=what)


class WholeGatherer:
    """Gathers blocks: every worker gets the whole tensor.

    Args:
        P: one axis for each dim; those of length 1 are whole already.
        what: name of the movement in errors.
    """

    def __init__(self, P: Partition, what: str = "gather") -> None:
        self.P = P
        self.what = what
        self._gather = BoxGather(P, self._plan, what, gives_views=False, settings="whole")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Gather; collective over the partition."""
        if self.P.index is None or self.P.size == 1:
            return x.clone()
        return self._gather(x).box

    def _plan(self, structure: Structure) -> BoxPlan:
        return plan_whole(structure.partition_shape, structure.blocks(self.what), self.what)


class Cutter:
    """Takes blocks of a replicated tensor: every worker gets its balanced block.

    Args:
        P: one axis for each dim; along those of length 1 nothing is cut.
        what: name of the movement in errors.
    """

    def __init__(self, P: Partition, what: str = "cut") -> None:
        self.P = P
        self.what = what
        self._plans = PlanCache()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Take the block; the adjoint is collective over the partition.

        Raises:
            ValueError: a dim has fewer elements than there are workers.
        """
        if self.P.index is None or self.P.size == 1:
            return x.clone()
        plan = self._plans.get(tuple(x.shape), lambda: self._plan(x.shape))
        moves = plan.worker(self.P.index).moves
        gathering = MoveOperator(moves, self.P.transport, self.what, x.dtype, (0,))
        return apply_operator(Reverse(gathering), x, requires_grad=False)

    def _plan(self, sizes: Sequence[int]) -> BoxPlan:
        blocks = balanced_blocks(sizes, self.P.shape, self.what)
        return plan_whole(self.P.shape, blocks, self.what)
