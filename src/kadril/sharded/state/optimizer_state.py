"""The state of a sharded optimizer: out of it, into it, and as one plain torch state_dict.

    state           name of parameter -> name of value -> this rank's part of it (cut_tensor.py)
    param_groups    options, and names of all parameters of the group

is what `state_dict()` gives: the form that torch.distributed.checkpoint.state_dict has for every
kind of sharding, so that keys agree with what FSDP and plain optimizers write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.shard_file import check_number
from kadril.sharded.cut_tensor import CutTensor, Part
from kadril.sharded.optimizer.initial_state import initial_values
from kadril.sharded.optimizer.optimizers import is_elementwise
from kadril.sharded.ownership.agreement import allgather_json, raise_together
from kadril.sharded.ownership.bucket import OwnPiece
from kadril.sharded.ownership.memory_order import shaped
from kadril.sharded.ownership.ownership_plan import Entry, Piece
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.named_state import check_options, read_named
from kadril.sharded.state.stored_state import (
    StoredParameter,
    StoredPiece,
    StoredState,
    StoredValue,
    describe_value,
    unknown_parameter,
)
from kadril.transport.base import Transport

__all__ = [
    "consolidate",
    "group_options",
    "load_state",
    "own_state",
    "part_of",
    "piece_values",
    "put_state",
    "read_state",
]

logger = logging.getLogger("kadril")

# How the step is computed, not what: the choice of this run stays.
OWN_CHOICES = ("foreach", "fused")


class Described(NamedTuple):
    """What others have to know of a value to take it in."""

    kind: str
    dtype: str | None
    shape: list[int]
    number: Any


def piece_values(
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    own: OwnPiece,
    given: Mapping[str, Any] | None = None,
) -> dict[str, StoredValue]:
    """The state of one piece: what the optimizer has, unless something else is given."""
    state = optimizer.state.get(own.tensor, {}) if given is None else given
    bucket = shards.bucket_of(own.piece.entry)
    dims = bucket.entry_of(own.piece).dims if bucket.keeps_shape else None
    return {
        key: describe_value(key, value, tuple(own.tensor.shape), dims)
        for key, value in state.items()
    }


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Options of the parameter groups."""
    return [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def part_of(shards: Shards) -> Part:
    """What to call this rank's part."""
    return Part(shards.transport.rank, shards.transport.size, shards.rule)


def own_state(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's part of the state; local. Parts are those of the optimizer, not copies.

    Parameters that have no state yet are given what the optimizer would begin with, so that every
    value that is in a checkpoint of this optimizer has a place to be loaded to.
    """
    entries = shards.parameters.entries()
    part = part_of(shards)
    state = {}
    for own in shards.own_pieces():
        entry = entries[own.piece.entry]
        values = piece_values(shards, optimizer, own)
        if not values and not entry.is_frozen:
            values = piece_values(shards, optimizer, own, initial_values(optimizer, own.tensor))
        if values:
            state[entry.name] = {
                key: as_part(value, entry, own, part) for key, value in values.items()
            }
    groups = group_options(optimizer)
    for number, group in enumerate(groups):
        group["params"] = [entry.name for entry in entries if entry.group == number]
    return {"state": state, "param_groups": groups}


def as_part(value: StoredValue, entry: Entry, own: OwnPiece, part: Part) -> Any:
    """A value as `state_dict()` gives it."""
    found = value.fetch()
    if value.kind == "cut":
        return CutTensor(found, entry.shape, entry.dims, own.piece.begin, part)
    if value.kind == "whole":
        dims = tuple(range(found.dim()))
        return CutTensor(found.reshape(-1), found.shape, dims, 0, part)
    return found.clone() if isinstance(found, torch.Tensor) else found


# ---- to one rank --------------------------------------------------------------------------------


def consolidate(
    transport: Transport, shards: Shards, optimizer: torch.optim.Optimizer, to: int = 0
) -> dict[str, Any] | None:
    """The state as a plain torch optimizer over whole parameters would have it; collective.

    State moves parameter by parameter, each piece once, straight to its place on rank `to`.

    Args:
        transport: over the ranks of the shards, for this call.
        shards: parameters.
        optimizer: of this rank's pieces.
        to: rank that gets it.

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
                check_number(value.number, key, shards.parameters.names[place])
    except CheckpointError as caught:
        error = caught
    raise_together(transport, "consolidate", error, CheckpointError)
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
    """A value without its elements; numbers as they are."""
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
    """The state of one parameter on rank `to`; collective."""
    keys = {
        key: Described(*described)
        for key, described in everyone[pieces[0].rank].get(str(place), {}).items()
    }
    moved = [key for key, described in keys.items() if described.kind != "scalar"]
    tensors: dict[str, torch.Tensor] = {}
    recvs = []
    if transport.rank == to:
        for key in moved:
            dtype = getattr(torch, str(keys[key].dtype).removeprefix("torch."))
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
    """A value as a plain optimizer has it."""
    if tensor is None:
        if described.dtype is None:
            return described.number
        dtype = getattr(torch, described.dtype.removeprefix("torch."))
        return torch.tensor(described.number, dtype=dtype)
    return shaped(tensor, entry.shape, entry.dims) if described.kind == "cut" else tensor


# ---- into the optimizer -------------------------------------------------------------------------


def read_state(state_dict: Any, shards: Shards, optimizer: torch.optim.Optimizer) -> StoredState:
    """What a user gives to be loaded: a plain state_dict, one rank's, or those of all ranks.

    Raises:
        CheckpointError: something else, or of another model or optimizer.
    """
    entries = shards.parameters.entries()
    is_list = isinstance(state_dict, list | tuple)
    given = list(state_dict) if is_list else [state_dict]
    if not given or not all(is_state_dict(each) for each in given):
        raise CheckpointError(
            "this is no state_dict of a torch optimizer, and none of kadril.sharded"
        )
    if not is_list and not is_named(given[0]):
        in_order = [entries[place] for place in shards.parameters.given]
        return read_plain(given[0], in_order, optimizer)
    stored = read_named(given, entries, optimizer, None if is_list else part_of(shards))
    if not any(parameter.pieces for parameter in stored.parameters):
        logger.info("the state_dict has no state of any parameter, as before the first step")
    return stored


def is_state_dict(given: Any) -> bool:
    """Whether something has the form of an optimizer's state."""
    return isinstance(given, Mapping) and "state" in given and "param_groups" in given


def is_named(state_dict: Mapping[str, Any]) -> bool:
    """Whether parameters are called by name, rather than numbered."""
    return any(
        isinstance(each, str) for group in state_dict["param_groups"] for each in group["params"]
    )


def read_plain(
    state_dict: Mapping[str, Any], entries: Sequence[Entry], optimizer: torch.optim.Optimizer
) -> StoredState:
    """The state_dict of a torch optimizer over whole parameters: of these, by name or in order.

    Raises:
        CheckpointError: it has another number of parameters, state of other shapes, or options of
            another optimizer.
    """
    groups = state_dict["param_groups"]
    numbered = [(index, number) for number, each in enumerate(groups) for index in each["params"]]
    if len(numbered) != len(entries):
        raise CheckpointError(
            f"the state has {len(numbered)} parameters, the trainer has {len(entries)}; is it of"
            " another model?"
        )
    options = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]
    check_options(options, optimizer)
    parameters = []
    for (index, number), entry in zip(numbered, in_order_of(groups, entries), strict=True):
        natural = tuple(range(len(entry.shape)))
        values = {
            key: describe_value(key, value, entry.shape, natural)
            for key, value in state_dict["state"].get(index, {}).items()
        }
        for key, value in values.items():
            if value.kind == "whole" and is_elementwise(type(optimizer)):
                raise CheckpointError(
                    f"state {key!r} of parameter {entry.name!r} has shape"
                    f" {tuple(value.fetch().shape)}, but the parameter {entry.shape}; is it of"
                    " another model?",
                    parameter=entry.name,
                )
        piece = StoredPiece(0, entry.num_elements, values)
        parameters.append(StoredParameter(entry.name, entry.shape, None, natural, (piece,), number))
    return StoredState(None, options, parameters, keeps_dtypes=False)


def in_order_of(groups: Sequence[Mapping[str, Any]], entries: Sequence[Entry]) -> Sequence[Entry]:
    """Parameters in the order of a plain state_dict: by their names, where it has those.

    Raises:
        CheckpointError: some of its names are known, and some are not.
    """
    known = {entry.name: entry for entry in entries}
    names = [name for group in groups for name in group.get("param_names") or ()]
    found = [name for name in names if name in known]
    if not found:
        return entries
    if len(set(found)) != len(entries):
        unknown = sorted(set(names) - known.keys()) or sorted(known.keys() - set(names))
        raise unknown_parameter(unknown[0], list(known))
    return [known[name] for name in names]


def load_state(
    shards: Shards, optimizer: torch.optim.Optimizer, stored: StoredState
) -> dict[str, Any]:
    """What to give to `optimizer.load_state_dict` for this rank's pieces; changes nothing.

    Raises:
        CheckpointError: the state does not fit.
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
    """Load what `load_state` gave.

    Torch casts state to the dtypes of parameters, but for `step`; numbers that optimizers keep in
    float32 beside parameters of less precision would lose theirs.

    Args:
        optimizer: that it is for.
        loaded: state of its pieces.
        keeps_dtypes: whether tensors are to have the dtypes that they have there, or only numbers.
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
    """Options as they were stored, in the types that the optimizer uses, for this rank's pieces."""
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
