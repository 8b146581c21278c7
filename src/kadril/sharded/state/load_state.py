"""Stored state, cut for this rank's pieces and loaded into their optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kadril.sharded.ownership.memory_order import shaped
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.stored_state import StoredState

__all__ = ["cut_state", "put_state"]

# Options that say how the step is computed, not what: those of the running optimizer stay.
OWN_CHOICES = ("foreach", "fused")


def cut_state(
    shards: Shards, optimizer: torch.optim.Optimizer, stored: StoredState
) -> dict[str, Any]:
    """Return the state_dict to load into the optimizer of this rank's pieces; changes nothing.

    Raises:
        CheckpointError: the state does not match the trainer.
    """
    entries = shards.parameters.entries()
    found = stored.match(entries, optimizer)
    numbers = {
        piece: number
        for number, piece in enumerate(
            piece for group in optimizer.param_groups for piece in group["params"]
        )
    }
    state: dict[int, dict[str, Any]] = {}
    for own in shards.own_pieces():
        entry, parameter = entries[own.piece.entry], found[own.piece.entry]
        keeps_shape = shards.bucket_of(own.piece.entry).keeps_shape
        values = {}
        for key in parameter.names_of_values():
            value = parameter.read(key, entry, own.piece.begin, own.piece.end)
            if keeps_shape and parameter.pieces[0].values[key].kind == "cut":
                value = shaped(value, entry.shape, entry.dims)
            values[key] = value
        if values:
            state[numbers[own.tensor]] = values
    return {"state": state, "param_groups": merged_groups(optimizer, stored, numbers)}


def put_state(
    optimizer: torch.optim.Optimizer, loaded: dict[str, Any], *, keeps_dtypes: bool
) -> None:
    """Load a state_dict that `cut_state` gave.

    Torch casts state to the dtypes of parameters, except `step`; scalars that optimizers keep in
    float32 beside parameters of lower precision would lose theirs.

    Args:
        optimizer: optimizer of the pieces.
        loaded: state of its pieces.
        keeps_dtypes: whether all tensors keep their dtypes, or only scalars.
    """
    optimizer.load_state_dict(loaded)
    pieces = [piece for group in optimizer.param_groups for piece in group["params"]]
    for number, values in loaded["state"].items():
        state = optimizer.state[pieces[number]]
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and (keeps_dtypes or value.dim() == 0):
                state[key] = value.to(state[key].device)


def merged_groups(
    optimizer: torch.optim.Optimizer,
    stored: StoredState,
    numbers: Mapping[torch.Tensor, int],
) -> list[dict[str, Any]]:
    """Return groups with the stored options, in the optimizer's types, and this rank's pieces."""
    groups = []
    for group, options in zip(optimizer.param_groups, stored.groups, strict=True):
        merged = {
            key: tuple(value) if isinstance(group.get(key), tuple) else value
            for key, value in options.items()
        }
        merged.update({key: group[key] for key in OWN_CHOICES if key in group})
        merged["params"] = [numbers[piece] for piece in group["params"]]
        groups.append(merged)
    return groups
