"""Broadcast the tensors of a model, so that all ranks start from the same weights."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TypeAlias

import torch

from kadril.torch.agreement import check_same
from kadril.torch.objects import broadcast_object
from kadril.torch.ops import broadcast_async_, synchronize

__all__ = ["broadcast_parameters", "broadcast_tensors"]

logger = logging.getLogger("kadril")

Parameters: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]] | Iterable[torch.Tensor]


def broadcast_parameters(params: Parameters, root_rank: int) -> None:
    """Overwrite tensors with those of the root, in place; collective.

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)

    Every rank gives the same names with the same shapes and dtypes. All tensors are submitted at
    once, so that small ones travel together.

    Args:
        params: a dict such as `model.state_dict()`, pairs of name and tensor such as
            `model.named_parameters()`, or tensors. Entries of a dict that are not tensors (an extra
            state, a step count) are replaced in that dict by the root's; None stays. Elsewhere
            entries that are not tensors are left alone.
        root_rank: the rank whose values all others take.

    Raises:
        ValueError: `params` is of another kind, or a name comes twice.
        MismatchError: on every rank, where ranks have different names, shapes or dtypes.
    """
    entries = named_entries(params)
    tensors = {name: value for name, value in entries.items() if isinstance(value, torch.Tensor)}
    others = {name: value for name, value in entries.items() if name not in tensors}
    check_same(
        "broadcast_parameters",
        [f"{name}: {describe(value)}" for name, value in entries.items()],
    )
    broadcast_tensors("broadcast_parameters", tensors, root_rank)
    values = {name: value for name, value in others.items() if value is not None}
    if not values:
        return
    if isinstance(params, MutableMapping):
        params.update(
            broadcast_object(
                values, root_rank, name="broadcast_parameters.values", allow_pickle=True
            )
        )
    else:
        logger.info("broadcast_parameters leaves %s alone: no tensors", ", ".join(values))


def broadcast_tensors(operation: str, tensors: Mapping[str, torch.Tensor], root_rank: int) -> None:
    """Broadcast many named tensors in place: first all are submitted, then all are awaited."""
    handles = [
        # Parameters are leaves that require a gradient; their memory is written below autograd.
        broadcast_async_(tensor.detach(), root_rank, name=f"{operation}.{name}")
        for name, tensor in tensors.items()
    ]
    errors = []
    for handle in handles:
        try:
            synchronize(handle)
        except Exception as error:  # the others are awaited nevertheless
            errors.append(error)
    if errors:
        raise errors[0]


def named_entries(params: Parameters) -> dict[str, Any]:
    """Entries by name, in an order that is the same on every rank."""
    if isinstance(params, Mapping):
        return {str(name): params[name] for name in sorted(params, key=str)}
    if isinstance(params, torch.Tensor) or not hasattr(params, "__iter__"):
        raise ValueError(
            f"params is a {type(params).__name__}; give model.state_dict(),"
            " model.named_parameters(), or a list of tensors"
        )
    entries: dict[str, Any] = {}
    entry: Any
    for index, entry in enumerate(params):
        is_pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        name, value = entry if is_pair else (f"tensor.{index}", entry)
        if not is_pair and not isinstance(value, torch.Tensor):
            raise ValueError(
                f"entry {index} of params is a {type(value).__name__}; give tensors, or pairs of"
                " name and tensor"
            )
        if name in entries:
            raise ValueError(f"params has the name {name!r} twice; names tell tensors apart")
        entries[name] = value
    return entries


def describe(value: Any) -> str:
    """Describe what has to be equal on all ranks."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return "nothing" if value is None else "a value"
