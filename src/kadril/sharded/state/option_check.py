"""Whether the options in a state_dict are those of an optimizer of the same kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kadril.errors import CheckpointError

__all__ = ["check_same_kind"]

# Options that torch's schedulers write into groups, beside those of the optimizer.
SCHEDULED = frozenset({"base_momentum", "initial_lr", "max_lr", "max_momentum", "min_lr", "swa_lr"})

# Options that torch's optimizers got in later versions; they fill them in themselves.
LATER = frozenset(
    {
        "amsgrad",
        "capturable",
        "centered",
        "decoupled_weight_decay",
        "differentiable",
        "foreach",
        "fused",
        "maximize",
        "nesterov",
    }
)


def check_same_kind(groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Raise `CheckpointError` for the options of another kind of optimizer.

    Groups of the same kind may have further options, added by users and schedulers, and may lack
    options that other versions of torch do not have.

    Args:
        groups: options of each parameter group, without its parameters.
        optimizer: optimizer that they are for.
    """
    known = optimizer.defaults.keys()
    for group in groups:
        unknown, missing = group.keys() - known - SCHEDULED, known - group.keys()
        foreign = unknown & distinctive_options()
        if (foreign and missing) or (unknown and missing - LATER):
            raise CheckpointError(
                f"the state is of an optimizer with option {min(foreign or unknown)!r} and without"
                f" {min(missing - LATER or missing)!r}; the trainer has {type(optimizer).__name__}"
            )


@functools.cache
def distinctive_options() -> frozenset[str]:
    """Return the options that tell torch's optimizers apart."""
    kinds = [
        each
        for each in vars(torch.optim).values()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    ]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    return frozenset(names - LATER - {"defaults", "params"})
