"""A slot: what a reducer knows of one parameter in the current round."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from kadril.errors import StateError
from kadril.torch.optimizer.reduction_unit import Unit

__all__ = ["ParameterSlot", "SlotReducer"]


class SlotReducer(Protocol):
    """Reducer that slots belong to, as they and the units that they travel in see it.

    Attributes:
        num_passes: backward passes in a round.
        has_news: whether a gradient came in this round.
    """

    num_passes: int
    has_news: bool

    @property
    def is_left(self) -> bool:
        """Whether the ranks have left the engine that gradients are submitted to."""
        ...

    def arrived(self, unit: Unit) -> None:
        """A unit has all its gradients."""
        ...

    def note_absent(self, slot: ParameterSlot) -> None:
        """A unit found no gradient."""
        ...

    def note_sparse(self, slot: ParameterSlot, sparse_dim: int) -> None:
        """A unit found a sparse gradient where a dense one is expected."""
        ...


class ParameterSlot:
    """One parameter.

    `arrived` runs for every parameter in every backward pass, so everything it needs hangs here.

    Attributes:
        index: place among the reducer's slots.
        name: of the parameter.
        parameter: whose gradient is reduced.
        reducer: the one that this belongs to.
        unit: what the gradient travels in.
        view: the gradient's place in a bucket, or None.
        left: backward passes of this round that are still to come.
    """

    __slots__ = ("_hook", "index", "left", "name", "parameter", "reducer", "unit", "view")

    def __init__(
        self, index: int, name: str, parameter: torch.Tensor, reducer: SlotReducer
    ) -> None:
        self.index = index
        self.name = name
        self.parameter = parameter
        self.reducer = reducer
        self.unit: Unit
        self.view: torch.Tensor | None = None
        self.left = reducer.num_passes
        self._hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            self.arrived
        )

    def arrived(self, _parameter: torch.Tensor) -> None:
        """Called by autograd when the gradient of a backward pass is in `.grad`."""
        if self.reducer.is_left:
            self.detach()  # ranks have met again, and nobody has told the optimizer yet
            return
        self.reducer.has_news = True
        self.left -= 1
        if self.left == 0:
            unit = self.unit
            unit.num_missing -= 1
            if unit.num_missing == 0:
                self.reducer.arrived(unit)
        elif self.left < 0:
            self.left = 0
            raise StateError(self.one_too_many())

    def one_too_many(self) -> str:
        """Return why a backward pass cannot be taken."""
        num_passes = self.reducer.num_passes
        return (
            f"parameter {self.name!r} got gradient number {num_passes + 1} before"
            f" optimizer.step(), but backward_passes_per_step is {num_passes}: what came before is"
            " being reduced over the ranks, and this would be lost. Call optimizer.step() or"
            " optimizer.zero_grad() first; to add up several passes, give"
            f" backward_passes_per_step={num_passes + 1} to DistributedOptimizer, or call"
            " optimizer.set_backward_passes_per_step()"
        )

    def detach(self) -> None:
        """Stop listening to the parameter."""
        self._hook.remove()
