"""A closure whose loss and gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kadril.shared_engine.reduce_ops import Average, Sum
from kadril.torch.ops import allreduce_
from kadril.torch.optimizer.reducer import Reducer

__all__ = ["ReducedClosure"]


class ReducedClosure:
    """Closure that an optimizer calls to evaluate the model again.

    The loss is reduced too: LBFGS and its line search decide by it whether to evaluate once more,
    and ranks that decide differently would wait for each other.

    Args:
        closure: the user's: clears gradients, evaluates, calls backward, returns the loss.
        reducer: of the gradients.
    """

    def __init__(self, closure: Callable[[], Any], reducer: Reducer) -> None:
        self.closure = closure
        self.reducer = reducer

    def __call__(self) -> Any:
        """The loss over all ranks, with gradients over all ranks in place."""
        with torch.enable_grad():
            loss = self.closure()
        self.reducer.synchronize()
        return self.reduce(loss)

    def reduce(self, loss: Any) -> Any:
        """A loss over all ranks: a tensor stays one, a number stays one; None stays too."""
        if loss is None:
            return None
        settings = self.reducer.settings
        if isinstance(loss, torch.Tensor):
            total = loss.detach().clone()
        else:
            total = torch.tensor(float(loss), dtype=torch.float64)
        allreduce_(
            total,
            name=f"{self.reducer.prefix}.loss",
            op=Sum if settings.op == Sum else Average,
            process_set=settings.process_set,
        )
        return total if isinstance(loss, torch.Tensor) else total.item()
