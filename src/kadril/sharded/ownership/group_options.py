"""The options of parameter groups: all that a group has beside its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["copy_options", "give_pieces", "group_options", "options_of"]

# What a group says of its parameters.
PARAMETER_KEYS = frozenset({"params", "param_names"})


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one parameter group, or of one in a state_dict."""
    return {key: value for key, value in group.items() if key not in PARAMETER_KEYS}


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each parameter group of an optimizer."""
    return [options_of(group) for group in optimizer.param_groups]


def copy_options(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    """Overwrite the options of parameter groups with those of others, group by group."""
    for group, other in zip(source, target, strict=True):
        other.update(options_of(group))


def give_pieces(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> torch.optim.Optimizer:
    """Give an optimizer other parameters, group by group; it keeps its options, and no state."""
    for own, other in zip(optimizer.param_groups, groups, strict=True):
        own["params"] = other["params"]
    optimizer.state.clear()
    return optimizer
