"""Several backward passes for one step: gradients are added up, and reduced once.

    pass 1 ... k-1      a_v += g_v
    pass k              step of a_v + g_v, reduced; a_v = 0

With `average_aggregated_gradients` the sum is divided by k. The optimizer counts steps, not passes.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["GradientAccumulator"]


class GradientAccumulator(abc.ABC):
    """Adds up the gradients of several backward passes, of which the last makes a step.

    A backend says where the sums are kept, and how passes are counted: `_add`.

    Args:
        num_passes: number of passes that make a step.
        is_mean: whether sums are divided by that.

    Raises:
        ValueError: less than one pass.
    """

    def __init__(self, num_passes: int, is_mean: bool) -> None:
        if num_passes < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1, got {num_passes}")
        self.num_passes = num_passes
        self.is_mean = is_mean

    def run(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
        """Add gradients, and call `step` with their sums at every k-th call."""
        if self.num_passes == 1:
            step(list(grads))
        else:
            self._add(grads, variables, step)

    @abc.abstractmethod
    def _add(
        self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]
    ) -> None:
        """Do what `run` does, where several passes make a step."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Forget the passes since the last step."""
