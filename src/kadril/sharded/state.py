"""The state of a sharded optimizer: out of it, into it, and as one plain torch state_dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kadril.errors import CheckpointError
from kadril.sharded.agreement import allgather_json
from kadril.sharded.bucket import OwnPiece
from kadril.sharded.layout import shaped
from kadril.sharded.optimizers import is_elementwise
from kadril.sharded.plan import Entry
from kadril.sharded.shards import Shards
from kadril.sharded.stored import (
    StoredParameter,
    StoredPiece,
    StoredState,
    StoredValue,
    describe_value,
)

__all__ = ["FORMAT", "consolidate", "group_options", "load_state", "own_state", "read_state"]

FORMAT = "kadril.sharded.state.1"

# How the step is computed, not what: the choice of this run stays.
OWN_CHOICES = ("foreach", "fused")


class Described(NamedTuple):
    """What others have to know of a value to take it in."""

    kind: str
    dtype: str | None
    shape: list[int]
    number: Any


def piece_values(
    shards: Shards, optimizer: torch.optim.Optimizer, own: OwnPiece
) -> dict[str, StoredValue]:
    """The state of one piece."""
    state = optimizer.state.get(own.tensor, {})
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


def own_state(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's part of the state; local. Tensors are those of the optimizer, not copies."""
    entries = shards.parameters.entries()
    return {
        "format": FORMAT,
        "rank": shards.transport.rank,
        "num_ranks": shards.transport.size,
        "rule": shards.rule,
        "optimizer": type(optimizer).__name__,
        "groups": group_options(optimizer),
        "parameters": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": str(entry.dtype),
                "dims": list(entry.dims),
                "group": entry.group,
            }
            for entry in entries
        ],
        "pieces": {
            entries[own.piece.entry].name: {
                "begin": own.piece.begin,
                "end": own.piece.end,
                "state": {
                    key: {"kind": value.kind, "value": value.fetch()}
                    for key, value in piece_values(shards, optimizer, own).items()
                },
            }
            for own in shards.own_pieces()
        },
    }


# ---- to one rank --------------------------------------------------------------------------------


def consolidate(
    shards: Shards, optimizer: torch.optim.Optimizer, to: int = 0
) -> dict[str, Any] | None:
    """The state as a plain torch optimizer over whole parameters would have it; collective.

    State moves parameter by parameter, each piece once, straight to its place on rank `to`.

    Returns:
        A state_dict on rank `to`, None elsewhere.
    """
    transport = shards.transport
    if not 0 <= to < transport.size:
        raise ValueError(f"to is {to}; there are ranks 0 to {transport.size - 1}")
    mine = {own.piece.entry: piece_values(shards, optimizer, own) for own in shards.own_pieces()}
    described = {
        place: {key: describe(value) for key, value in values.items()}
        for place, values in mine.items()
    }
    everyone = allgather_json(transport, described, "consolidate")
    state: dict[int, dict[str, Any]] = {}
    for place, entry in enumerate(shards.parameters.entries()):
        gathered = gather_parameter(shards, place, entry, to, mine.get(place, {}), everyone)
        if gathered:
            state[place] = gathered
    if transport.rank != to:
        return None
    groups = group_options(optimizer)
    for number, group in enumerate(groups):
        members = shards.parameters.groups
        group["params"] = [place for place, each in enumerate(members) if each == number]
    return {"state": state, "param_groups": groups}


def describe(value: StoredValue) -> Described:
    """A value without its elements; numbers as they are."""
    found = value.fetch()
    if not isinstance(found, torch.Tensor):
        return Described(value.kind, None, [], found)
    number = found.item() if value.kind == "scalar" else None
    return Described(value.kind, str(found.dtype), list(found.shape), number)


def gather_parameter(
    shards: Shards,
    place: int,
    entry: Entry,
    to: int,
    mine: Mapping[str, StoredValue],
    everyone: Sequence[Mapping[str, Mapping[str, Any]]],
) -> dict[str, Any]:
    """The state of one parameter on rank `to`; collective."""
    transport = shards.transport
    pieces = shards.pieces_of(place)
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
    """What a user gives to be loaded: a plain state_dict, one shard, or the shards of all ranks.

    Raises:
        CheckpointError: something else, or of another model.
    """
    if isinstance(state_dict, Mapping) and "state" in state_dict and "param_groups" in state_dict:
        entries = shards.parameters.entries()
        return read_plain(state_dict, entries, is_elementwise=is_elementwise(type(optimizer)))
    given = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
    if not given or any(
        not isinstance(shard, Mapping) or shard.get("format") != FORMAT for shard in given
    ):
        raise CheckpointError(
            "this is no state_dict of a torch optimizer, and none of kadril.sharded"
        )
    if isinstance(state_dict, Mapping):
        check_is_own(state_dict, shards)
    return join_shards(given, is_partial=isinstance(state_dict, Mapping))


def check_is_own(shard: Mapping[str, Any], shards: Shards) -> None:
    """Raise `CheckpointError` for a shard that has not what this rank needs."""
    mine = (shards.transport.rank, shards.transport.size, shards.rule)
    theirs = (shard["rank"], shard["num_ranks"], shard["rule"])
    if mine != theirs:
        raise CheckpointError(
            "the state_dict is that of rank {} of {} with rule {!r}, this is rank {} of {} with"
            " rule {!r}; give the state_dicts of all ranks in a list, or use save() and"
            " load()".format(*theirs, *mine)
        )


def read_plain(
    state_dict: Mapping[str, Any], entries: Sequence[Entry], *, is_elementwise: bool
) -> StoredState:
    """The state_dict of a torch optimizer over whole parameters, in the order of these.

    Raises:
        CheckpointError: it has another number of parameters, or state of other shapes.
    """
    groups = state_dict["param_groups"]
    indices = [index for group in groups for index in group["params"]]
    if len(indices) != len(entries):
        raise CheckpointError(
            f"the state has {len(indices)} parameters, the trainer has {len(entries)}; is it of"
            " another model?"
        )
    parameters = []
    for index, entry in zip(indices, entries, strict=True):
        natural = tuple(range(len(entry.shape)))
        values = {
            key: describe_value(key, value, entry.shape, natural)
            for key, value in state_dict["state"].get(index, {}).items()
        }
        for key, value in values.items():
            if value.kind == "whole" and is_elementwise:
                raise CheckpointError(
                    f"state {key!r} of parameter {entry.name!r} has shape"
                    f" {tuple(value.fetch().shape)}, but the parameter {entry.shape}; is it of"
                    " another model?",
                    parameter=entry.name,
                )
        piece = StoredPiece(0, entry.num_elements, values)
        parameters.append(StoredParameter(entry.name, entry.shape, None, natural, (piece,)))
    options = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]
    return StoredState(None, options, [len(group["params"]) for group in groups], parameters)


def join_shards(shards: Sequence[Mapping[str, Any]], *, is_partial: bool) -> StoredState:
    """Shards of several ranks as one.

    Args:
        shards: of all ranks, or only of one.
        is_partial: whether elements may be missing.
    """
    first = shards[0]
    parameters = []
    for parameter in first["parameters"]:
        pieces = [
            StoredPiece(
                piece["begin"],
                piece["end"],
                {
                    key: StoredValue(value["kind"], lambda value=value: value["value"])  # type: ignore[misc]
                    for key, value in piece["state"].items()
                },
            )
            for shard in shards
            for name, piece in shard["pieces"].items()
            if name == parameter["name"]
        ]
        parameters.append(
            StoredParameter(
                parameter["name"],
                tuple(parameter["shape"]),
                parameter["dtype"],
                tuple(parameter["dims"]),
                tuple(sorted(pieces, key=lambda piece: piece.begin)),
                is_partial,
            )
        )
    groups = [parameter["group"] for parameter in first["parameters"]]
    lengths = [groups.count(number) for number in range(len(first["groups"]))]
    return StoredState(first["optimizer"], first["groups"], lengths, parameters)


def load_state(
    shards: Shards, optimizer: torch.optim.Optimizer, stored: StoredState
) -> dict[str, Any]:
    """What to give to `optimizer.load_state_dict` for this rank's pieces; changes nothing.

    Raises:
        CheckpointError: the state does not fit.
    """
    entries = shards.parameters.entries()
    found = stored.match(entries, type(optimizer).__name__)
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
