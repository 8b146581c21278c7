"""Plan that the graph pass follows: who owns which gradient, and how it gets there."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["GradientPlan"]


class GradientPlan(Protocol):
    """Takes gradients to their owners; a trainer is one.

    Attributes:
        names: of the parameters, in the order of the model; the same on all ranks.
        rank: of this process in the group that shares the gradients.
        size: of that group.
    """

    names: tuple[str, ...]
    rank: int
    size: int

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name of a parameter, by identity; None where it is not one of this plan's."""
        ...

    def parameter_of(self, name: str) -> torch.Tensor:
        """Return the parameter of a name."""
        ...

    def owner_of(self, name: str) -> int | None:
        """Return the rank that gets the whole gradient; None where each rank gets a part of it.

        Where it is None the plan keeps what it needs by itself in `reduce_gradient`; and it gets a
        gradient there only if it does not get it in `.grad`.
        """
        ...

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        """Bring a gradient to its owners.

        On a rank that owns all of it the reduced gradient replaces `gradient`, in place. Elsewhere
        `gradient` must not be changed, unless it is given: other nodes of the graph may still read
        it. It may be kept: the graph does not write to its memory again.

        Args:
            name: of the parameter.
            gradient: of the parameter's shape, and contiguous on its owner.
            label: what this call is, for plans whose ranks make it together: name, place and total.
            is_given: whether its memory is the plan's from now on, since nobody reads it again.

        Raises:
            MismatchError: ranks that reduce together come with different gradients; on all of them.
        """
        ...

    def note_dropped(self, name: str) -> None:
        """Note that a compiled graph gives this rank no gradient for a parameter."""
        ...
