"""The options of parameter groups: all that a group has beside its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["copy_options", "group_options", "options_of"]

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
