"""The state of all ranks as one state_dict of a plain torch optimizer, on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kadril.errors import CheckpointError
from kadril.sharded.ownership.group_options import group_options
from kadril.sharded.ownership.memory_order import shaped
from kadril.sharded.ownership.ownership_plan import Entry, Piece
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.own_state import piece_values
from kadril.sharded.state.stored_state import StoredValue
from kadril.sharded.state.value_kinds import check_storable, dtype_from
from kadril.transport.agreement import allgather_json, raise_on_all
from kadril.transport.base import Transport

__all__ = ["consolidate"]


class Described(NamedTuple):
    """A value without its elements: what rank `to` has to know to receive it."""

    kind: str
    dtype: str | None
    shape: list[int]
    number: Any


def consolidate(
    transport: Transport, shards: Shards, optimizer: torch.optim.Optimizer, to: int = 0
) -> dict[str, Any] | None:
    """Bring the state to one rank, as a plain torch optimizer has it; collective.

    State moves parameter by parameter, each piece once, straight to its place on rank `to`.

    Args:
        transport: dedicated transport over the ranks.
        shards: the parameters.
        optimizer: optimizer of this rank's pieces.
        to: rank that gets the state.

    Returns:
        A state_dict on rank `to`, None elsewhere.

    Raises:
        CheckpointError: a rank has state that is neither a tensor nor anything that JSON can hold;
            on all ranks. It names the parameter.
    """
    if not 0 <= to < transport.size:
        raise ValueError(f"to is {to}; there are ranks 0 to {transport.size - 1}")
    mine = {own.piece.entry: piece_values(shards, optimizer, own) for own in shards.own_pieces()}
    described = {
        place: {key: describe(value) for key, value in values.items()}
        for place, values in mine.items()
    }
    error: CheckpointError | None = None
    try:
        for place, values in described.items():
            for key, value in values.items():
                check_storable(value.number, key, shards.parameters.names[place])
    except CheckpointError as caught:
        error = caught
    raise_on_all(transport, "consolidate", error, CheckpointError)
    everyone = allgather_json(transport, described, "consolidate")
    state: dict[int, dict[str, Any]] = {}
    for place, entry in enumerate(shards.parameters.entries()):
        pieces = shards.pieces_of(place)
        gathered = gather_parameter(
            transport, pieces, place, entry, to, mine.get(place, {}), everyone
        )
        if gathered:
            state[place] = gathered
    if transport.rank != to:
        return None
    groups = group_options(optimizer)
    parameters = shards.parameters
    for number, group in enumerate(groups):
        group["params"] = [
            place for place in parameters.given if parameters.groups[place] == number
        ]
    return {"state": state, "param_groups": groups}


def describe(value: StoredValue) -> Described:
    """Describe a value without its elements; numbers as they are."""
    found = value.fetch()
    if not isinstance(found, torch.Tensor):
        return Described(value.kind, None, [], found)
    number = found.item() if value.kind == "scalar" else None
    return Described(value.kind, str(found.dtype), list(found.shape), number)


def gather_parameter(
    transport: Transport,
    pieces: Sequence[Piece],
    place: int,
    entry: Entry,
    to: int,
    mine: Mapping[str, StoredValue],
    everyone: Sequence[Mapping[str, Mapping[str, Any]]],
) -> dict[str, Any]:
    """Return the state of one parameter on rank `to`, {} elsewhere; collective."""
    keys = {
        key: Described(*described)
        for key, described in everyone[pieces[0].rank].get(str(place), {}).items()
    }
    moved = [key for key, described in keys.items() if described.kind != "scalar"]
    tensors: dict[str, torch.Tensor] = {}
    recvs = []
    if transport.rank == to:
        for key in moved:
            dtype = dtype_from(str(keys[key].dtype))
            if keys[key].kind == "whole":
                tensors[key] = torch.empty(keys[key].shape, dtype=dtype)
                recvs.append((pieces[0].rank, tensors[key]))
                continue
            tensors[key] = torch.empty(entry.num_elements, dtype=dtype)
            recvs += [(piece.rank, tensors[key][piece.begin : piece.end]) for piece in pieces]
    sends = [(to, mine[key].fetch().contiguous()) for key in moved if key in mine]
    if moved:
        transport.exchange(sends, recvs, name=f"consolidate.{place}")
    if transport.rank != to:
        return {}
    return {key: assemble(described, tensors.get(key), entry) for key, described in keys.items()}


def assemble(described: Described, tensor: torch.Tensor | None, entry: Entry) -> Any:
    """Return a value in the form that a plain optimizer has it in."""
    if tensor is None:
        if described.dtype is None:
            return described.number
        return torch.tensor(described.number, dtype=dtype_from(described.dtype))
    return shaped(tensor, entry.shape, entry.dims) if described.kind == "cut" else tensor
