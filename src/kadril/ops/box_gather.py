"""Box gather: every worker gets the box of a tensor that it needs, in one exchange.

    y_r[i] = x[i]  for i in the box of worker r         x*[i] = sum_r y*_r[i]

The boxes follow from the blocks of all workers (`box_plan.py`). On shared memory, agreeing on the
blocks and moving them are one meeting (`moves/mover.py`). Where every worker has its box already
nothing is copied: it gets a view of its block.

Moved: every element once for each other worker that needs it; the same in the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch

from kadril.ops.box_plan import BoxPlan, WorkerBoxes
from kadril.ops.linear_operator import Reverse, apply_operator
from kadril.ops.moves.carriers import MoveOperator, move
from kadril.ops.moves.mover import Mover, Planned
from kadril.ops.structure import PlanCache, Structure, shared_plans
from kadril.partition import Partition

__all__ = ["BoxGather", "Gathered"]


class Gathered(NamedTuple):
    """Result of a box gather on one worker.

    Attributes:
        box: its box; its block where the plan leaves blocks as they lie.
        mine: its part of the plan.
        structure: of the tensor.
    """

    box: torch.Tensor
    mine: WorkerBoxes
    structure: Structure


class BoxGather:
    """A box gather that is done again and again.

    Args:
        P_x: one axis for each dim of the tensors.
        plan: from the structure of a tensor to the plan; raises where the tensor does not match.
            The same on all workers.
        what: name of the operation in errors.
        gives_views: whether a worker may get a view of its block, or the block itself, where all
            workers have their boxes already; a new tensor otherwise.
        settings: all that plans follow from besides the structure, as plain values: gathers with
            the same settings, name and partition share their plans. None where they do not.
    """

    def __init__(
        self,
        P_x: Partition,
        plan: Callable[[Structure], BoxPlan],
        what: str,
        *,
        gives_views: bool = True,
        settings: Hashable | None = None,
    ) -> None:
        self.P_x = P_x
        self.make_plan = plan
        self.what = what
        self.gives_views = gives_views
        self._plans, descriptions = PlanCache(), PlanCache()
        if settings is not None:
            key = (settings, what, P_x.ranks, P_x.shape, P_x.index)
            self._plans = shared_plans("boxes", key)
            descriptions = shared_plans("descriptions of blocks", key)
        self._mover = Mover(P_x, P_x, self._planned, what, descriptions=descriptions)

    def __call__(self, x: torch.Tensor) -> Gathered:
        """Agree on the structure of a tensor and gather; collective over the partition.

        Args:
            x: this worker's block.

        Raises:
            ValueError, UnsupportedError: the tensor does not match the partition, or what the plan
                raises; on all workers, before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        moved = self._mover(x)
        mine: WorkerBoxes = moved.plan
        if moved.y is not None:
            box = mine.extend(moved.y)
        else:
            box = x if mine.plan.leaves_blocks else mine.extend(mine.cut(x))
        return Gathered(box, mine, moved.structure)

    def plan(self, structure: Structure) -> BoxPlan:
        """Return the plan for a structure; the same on all workers.

        Raises:
            ValueError: the tensor does not match the partition, or what the plan raises.
            MismatchError: the blocks do not make up a tensor.
        """
        return self._plans.get(structure, lambda: self.make_plan(structure))

    def fetch(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """Gather, with the structure agreed on already; collective over the partition."""
        mine = self._mine(structure)
        if mine.plan.is_local and self.gives_views:
            return mine.extend(mine.cut(x))
        transport = self.P_x.transport
        y = move(x, mine.moves, transport, self.what, requires_grad=structure.requires_grad)
        return mine.extend(y)

    def add_back(self, y: torch.Tensor, structure: Structure) -> torch.Tensor:
        """Return x* = F* y*: boxes go back to the owners, who add them up; with F as its gradient.

        Args:
            y: of the shape of this worker's box.
            structure: of the tensor that the boxes are of, and whether any worker's `y` requires
                gradients; the same on all workers.
        """
        mine = self._mine(structure)
        if mine.is_extended:
            y = adjoint_of_extension(mine, y)
        operator = MoveOperator(
            mine.moves, self.P_x.transport, f"adjoint of {self.what}", structure.dtype, (0,)
        )
        return apply_operator(Reverse(operator), y, requires_grad=structure.requires_grad)

    def _mine(self, structure: Structure) -> WorkerBoxes:
        if self.P_x.index is None:
            raise AssertionError("only workers of the partition gather")
        return self.plan(structure).worker(self.P_x.index)

    def _planned(self, structure: Structure) -> Planned:
        mine = self._mine(structure)
        stays = mine.plan.leaves_blocks or (mine.plan.is_local and self.gives_views)
        return Planned(None if stays else mine.moves, mine)


def adjoint_of_extension(mine: WorkerBoxes, y: torch.Tensor) -> torch.Tensor:
    """Add up what `WorkerBoxes.extend` copies: from a box to its sources."""
    sizes = [interval.size for interval in mine.source]
    with torch.enable_grad():
        x = y.new_zeros(sizes).requires_grad_()
        extended = mine.extend(x)
    (found,) = torch.autograd.grad(extended, x, y, create_graph=torch.is_grad_enabled())
    return found
