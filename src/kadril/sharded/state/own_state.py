"""The state of this rank's pieces, as `trainer.state_dict()` gives it.

    state           name of parameter -> name of value -> this rank's part of it (cut_tensor.py)
    param_groups    options, and names of all parameters of the group

is the form that torch.distributed.checkpoint.state_dict has for every kind of sharding, so that
keys agree with what FSDP and plain optimizers write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kadril.sharded.cut_tensor import CutTensor, Part
from kadril.sharded.optimizer.initial_state import initial_values
from kadril.sharded.ownership.bucket import OwnPiece
from kadril.sharded.ownership.group_options import group_options
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.stored_state import StoredValue, describe_value

__all__ = [
    "as_part",
    "own_pieces",
    "own_state",
    "part_of",
    "piece_values",
    "whole_as_part",
]


def piece_values(
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    own: OwnPiece,
    given: Mapping[str, Any] | None = None,
) -> dict[str, StoredValue]:
    """Describe the state of one piece: that of the optimizer, or another one that is given."""
    state = optimizer.state.get(own.tensor, {}) if given is None else given
    bucket = shards.bucket_of(own.piece.entry)
    dims = bucket.entry_of(own.piece).dims if bucket.keeps_shape else None
    return {
        key: describe_value(key, value, tuple(own.tensor.shape), dims)
        for key, value in state.items()
    }


def own_pieces(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return the state that this rank's pieces have, as `lay_out` takes it."""
    return {
        shards.parameters.names[own.piece.entry]: {
            "begin": own.piece.begin,
            "end": own.piece.end,
            "state": {
                key: {"kind": value.kind, "value": value.fetch()}
                for key, value in piece_values(shards, optimizer, own).items()
            },
        }
        for own in shards.own_pieces()
    }


def own_state(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return this rank's part of the state; local. Tensors share memory with the optimizer's.

    Parameters that have no state yet get what the optimizer would begin with, so that every value
    of a checkpoint of this optimizer has a place to be loaded to.
    """
    entries = shards.parameters.entries()
    state = {}
    for own in shards.own_pieces():
        entry = entries[own.piece.entry]
        values = piece_values(shards, optimizer, own)
        if not values and not entry.is_frozen:
            values = piece_values(shards, optimizer, own, initial_values(optimizer, own.tensor))
        if values:
            state[entry.name] = {
                key: value_as_part(value, shards, own) for key, value in values.items()
            }
    groups = group_options(optimizer)
    for number, group in enumerate(groups):
        group["params"] = [entry.name for entry in entries if entry.group == number]
    return {"state": state, "param_groups": groups}


def value_as_part(value: StoredValue, shards: Shards, own: OwnPiece) -> Any:
    """Return a value of the state in the form that `state_dict()` has it in."""
    found = value.fetch()
    if value.kind == "cut":
        return as_part(found, shards, own)
    if value.kind == "whole":
        return whole_as_part(found.reshape(-1), found.shape, shards)
    return found.clone() if isinstance(found, torch.Tensor) else found


def part_of(shards: Shards) -> Part:
    """Return which part of all state this rank has."""
    return Part(shards.transport.rank, shards.transport.size, shards.rule)


def as_part(flat: torch.Tensor, shards: Shards, own: OwnPiece) -> CutTensor:
    """Present flat elements of a piece as a part of a tensor in the shape of its parameter."""
    entry = shards.bucket_of(own.piece.entry).entry_of(own.piece)
    return CutTensor(flat, entry.shape, entry.dims, own.piece.begin, part_of(shards))


def whole_as_part(flat: torch.Tensor, shape: Sequence[int], shards: Shards) -> CutTensor:
    """Present the flat elements of a whole tensor, which this rank has, as such a part."""
    return CutTensor(flat, shape, tuple(range(len(shape))), 0, part_of(shards))
