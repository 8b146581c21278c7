"""The state that an optimizer begins with, before it has stepped a parameter for the first time.

Torch's optimizers make their state in the first step. To load a checkpoint into a new optimizer
there has to be something to load into, and what is not loaded has to be what it would have been.
"""

from __future__ import annotations

from typing import Any

import torch

from kadril.sharded.optimizer.supported_optimizers import is_of_torch

__all__ = ["initial_values"]

# Everything else begins as zeros.
ONES = frozenset({"mu", "mu_product"})
LEARNING_RATES = frozenset({"eta", "step_size"})


def initial_values(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    """Return state with which the next step gives the same result as a first step without state.

    Empty where that is not known: for classes that torch does not have, and for SGD with dampening,
    whose first step is unlike all others.
    """
    if not is_of_torch(type(optimizer)):
        return {}
    group = next(
        each
        for each in optimizer.param_groups
        if any(member is parameter for member in each["params"])
    )
    if group.get("dampening"):
        return {}
    placeholder = torch.nn.Parameter(torch.zeros_like(parameter))
    placeholder.grad = torch.zeros_like(placeholder)
    temporary = type(optimizer)([{**group, "params": [placeholder]}])  # type: ignore[call-arg]
    temporary.step()
    return {
        key: initial_value(key, value, float(group["lr"]))
        for key, value in temporary.state[placeholder].items()
        if value is not None
    }


def initial_value(key: str, value: Any, lr: float) -> Any:
    """Return a value of the state as it is before the first step."""
    number = 1.0 if key in ONES else lr if key in LEARNING_RATES else 0.0
    return torch.full_like(value, number) if isinstance(value, torch.Tensor) else number
