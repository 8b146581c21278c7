"""A trainer, as the graph pass sees it."""

from __future__ import annotations

import torch

from kadril.errors import StateError
from kadril.sharded.graph.registry import Registration, note_change, register_plan
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.reduced_gradients import ReducedGradients

__all__ = ["TrainerPlan"]


class TrainerPlan:
    """Takes gradients out of compiled backward graphs; a `GradientPlan`.

    Each rank gets its part of every gradient, so graphs hand none of them out. What comes outside
    of graphs, or from graphs that were told to keep their gradients, arrives in `.grad` and goes
    the usual way.

    Attributes:
        names: of the parameters.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, shards: Shards, gradients: ReducedGradients) -> None:
        self._shards = shards
        self._gradients = gradients
        self.rank = shards.transport.rank
        self.size = shards.transport.size
        self._dropped: set[str] = set()
        self.names: tuple[str, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Take in parameters that were added."""
        self.names = tuple(self._shards.parameters.names)
        self._places = {name: place for place, name in enumerate(self.names)}
        note_change()

    def register(self) -> Registration:
        """Make it known to the graphs of this process, for as long as the result lives."""
        return register_plan(self)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name of a parameter."""
        place = self._shards.parameters.place_of(parameter)
        return None if place is None else self._shards.parameters.names[place]

    def parameter_of(self, name: str) -> torch.Tensor:
        """Return the parameter of a name."""
        return self._shards.parameters.tensors[self._places[name]]

    @property
    def owners(self) -> dict[str, int]:
        """Rank that has most of each gradient, by name."""
        return self._shards.owners()

    def owner_of(self, name: str) -> None:
        """Return None: no rank gets a whole gradient."""

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        """Send a gradient to its owners as hooks do; not collective, so the label is not needed."""
        if name not in self._dropped:
            return  # it is handed out too, and will be reduced from `.grad`
        if self._gradients.stage == 1:
            raise StateError(
                f"the compiled graph gives the gradient of {name!r} away, but the trainer keeps"
                " gradients: make it with stage=2, or compile with partition_grad=False"
            )
        self._gradients.arrived_in_graph(self._places[name], gradient, is_given=is_given)

    def note_dropped(self, name: str) -> None:
        """Note that a compiled graph does not hand this gradient out."""
        self._dropped.add(name)
