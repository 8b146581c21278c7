"""Reading a checkpoint: each rank what it owns, from the shards of any number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.own.index_file import CHECKSUM, read_index
from kadril.sharded.checkpoint.own.shard_file import PARAMETER, STATE, ShardFile
from kadril.sharded.checkpoint.same_version import check_same_version
from kadril.sharded.ownership.bucket import OwnPiece
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.load_state import cut_state, put_state
from kadril.sharded.state.stored_state import StoredParameter, StoredPiece, StoredState
from kadril.transport.agreement import raise_on_all

__all__ = ["load_checkpoint"]


def load_checkpoint(
    directory: Path, shards: Shards, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Read what this rank owns, and load it once all ranks have read theirs; collective.

    Returns:
        What was given as `extra`.

    Raises:
        CheckpointError: it is missing, damaged, or of another model; on all ranks, and nothing was
            changed.
    """
    error: Exception | None = None
    entries = shards.parameters.entries()
    elements: dict[OwnPiece, torch.Tensor] = {}
    try:
        index = read_index(directory)
        stored = read_shards(directory, index)
        found = stored.match(entries, optimizer)
        for own in shards.own_pieces():
            place = own.piece.entry
            elements[own] = found[place].read(
                PARAMETER, entries[place], own.piece.begin, own.piece.end
            )
        parameters = [only_state(parameter) for parameter in stored.parameters]
        state = dataclasses.replace(stored, parameters=parameters)
        state_dict = cut_state(shards, optimizer, state)
    except Exception as caught:  # files may have anything in them, and all ranks wait below
        error = caught
        if not isinstance(caught, CheckpointError):
            error = CheckpointError(f"{directory}: {caught!r}", path=str(directory))
    # All have read, and nobody computes with the parameters any more.
    raise_on_all(shards.transport, "load", error, CheckpointError)
    check_same_version(shards.transport, directory, index[CHECKSUM])
    with torch.no_grad():
        for own, flat in elements.items():
            shards.bucket_of(own.piece.entry).elements_of(own.piece).copy_(flat)
    put_state(optimizer, state_dict, keeps_dtypes=True)
    shards.publish()
    extra: dict[str, Any] = index["extra"]
    return extra


def read_shards(directory: Path, index: Mapping[str, Any]) -> StoredState:
    """Open all shards of a checkpoint as one state; elements are read when they are fetched."""
    pieces: dict[str, list[StoredPiece]] = {each["name"]: [] for each in index["parameters"]}
    for described in index["files"]:
        file = ShardFile(directory / described["name"], described)
        for name, piece in file.pieces():
            if name not in pieces:
                raise CheckpointError(
                    f"{file.path} has a parameter {name!r} that the index does not name",
                    parameter=name,
                    path=str(file.path),
                )
            pieces[name].append(piece)
    return StoredState(
        index["optimizer"],
        index["groups"],
        [
            StoredParameter(
                each["name"],
                tuple(each["shape"]),
                each["dtype"],
                tuple(each["dims"]),
                tuple(sorted(pieces[each["name"]], key=lambda piece: piece.begin)),
                each["group"],
            )
            for each in index["parameters"]
        ],
    )


def only_state(parameter: StoredParameter) -> StoredParameter:
    """Return a parameter without its own elements, and with the optimizer's names of values."""
    pieces = tuple(
        StoredPiece(
            piece.begin,
            piece.end,
            {
                key.removeprefix(STATE): value
                for key, value in piece.values.items()
                if key != PARAMETER
            },
        )
        for piece in parameter.pieces
    )
    return dataclasses.replace(parameter, pieces=pieces)
