"""Nested values: tensors, nodes and others in lists, tuples, dicts and slices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["leaves", "map_leaves", "rebuilt"]


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each value in a nested one, and keep the nesting."""
    if isinstance(value, dict):
        return rebuilt(value, {name: map_leaves(each, function) for name, each in value.items()})
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [map_leaves(each, function) for each in value])
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(map_leaves(each, function) for each in parts))
    return function(value)


def rebuilt(like: Any, parts: Any) -> Any:
    """Return parts in a container of the kind of another one."""
    kind = type(like)
    if isinstance(like, tuple):
        if hasattr(like, "_fields"):
            return kind(*parts)
        # Results of torch such as `torch.return_types.max`; and sizes, which hold numbers only.
        return kind(parts) if hasattr(like, "n_sequence_fields") else tuple(parts)
    if isinstance(like, dict):
        made = copy.copy(like)
        made.update(parts)
        return made
    return list(parts)


def leaves(value: Any) -> list[Any]:
    """Return all values in a nested one, in order."""
    found: list[Any] = []
    map_leaves(value, found.append)
    return found
