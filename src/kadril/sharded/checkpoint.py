"""Checkpoints: a directory with a shard of each rank and an index, which is written last.

    index.json                      names the files that belong together, with their checksums
    7f3a-00000-of-00002.shard       what rank 0 owns: parameters and state
    7f3a-00001-of-00002.shard

Shards are written under new names, and made durable, before the index is replaced in one move.
Whoever is killed at any moment leaves either the old index with all its files or the new one with
all of its; files that no index names are removed by the next `save`.

All ranks see the same directory. What is in it was written by JSON and plain bytes: loading it runs
no code.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.agreement import allgather_json, raise_together
from kadril.sharded.bucket import OwnPiece
from kadril.sharded.shard_file import ShardFile, write_shard
from kadril.sharded.shards import Shards
from kadril.sharded.state import group_options, load_state, piece_values
from kadril.sharded.stored import StoredParameter, StoredPiece, StoredState

__all__ = ["load_checkpoint", "save_checkpoint"]

FORMAT = "kadril.sharded.checkpoint.1"
INDEX = "index.json"
PARAMETER = "parameter"  # key of the parameter's own elements, beside those of its state


def save_checkpoint(
    directory: Path,
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
) -> None:
    """Write parameters and state, each rank what it owns; collective.

    Raises:
        CheckpointError: a rank could not write; on all ranks. What was there before is as it was.
    """
    transport = shards.transport
    error: Exception | None = None
    described: dict[str, Any] = {}
    token = agree_on_token(shards)
    name = f"{token}-{transport.rank:05d}-of-{transport.size:05d}.shard"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        described = write_shard(directory / name, own_values(shards, optimizer))
    except (OSError, ValueError) as caught:
        error = CheckpointError(f"{directory / name}: {caught}", path=str(directory / name))
    raise_together(transport, f"save to {directory}", error, CheckpointError)
    files = allgather_json(transport, described, "save")
    if transport.rank == 0:
        try:
            write_index(directory, index_of(shards, optimizer, files, extra))
        except (OSError, ValueError, TypeError) as caught:
            error = CheckpointError(f"{directory / INDEX}: {caught}", path=str(directory / INDEX))
    raise_together(transport, f"save to {directory}", error, CheckpointError)
    if transport.rank == 0:
        remove_others(directory, {file["name"] for file in files})


def agree_on_token(shards: Shards) -> str:
    """A name for this set of files that no other has; collective."""
    return str(allgather_json(shards.transport, secrets.token_hex(8), "token")[0])


def own_values(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """What this rank owns of each parameter: its elements, and their state."""
    pieces: dict[str, dict[str, Any]] = {}
    for own in shards.own_pieces():
        bucket = shards.bucket_of(own.piece.entry)
        begin = bucket.begin + own.piece.offset
        flat = bucket.flat[begin : begin + own.piece.end - own.piece.begin]
        values = {
            f"state.{key}": {"kind": value.kind, "value": value.fetch()}
            for key, value in piece_values(shards, optimizer, own).items()
        }
        values[PARAMETER] = {"kind": "cut", "value": flat.detach()}
        pieces[bucket.entry_of(own.piece).name] = {
            "begin": own.piece.begin,
            "end": own.piece.end,
            "state": values,
        }
    return pieces


def index_of(
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    files: list[dict[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """What the index says."""
    return {
        "format": FORMAT,
        "num_ranks": shards.transport.size,
        "rule": shards.rule,
        "optimizer": type(optimizer).__name__,
        "groups": [plain_options(options) for options in group_options(optimizer)],
        "parameters": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": str(entry.dtype),
                "dims": list(entry.dims),
                "group": entry.group,
            }
            for entry in shards.parameters.entries()
        ],
        "files": files,
        "extra": dict(extra),
    }


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them."""
    return {
        key: value.item() if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }


def write_index(directory: Path, index: Mapping[str, Any]) -> None:
    """Replace the index in one move, after everything that it names is durable."""
    sync_directory(directory)
    path = directory / f"{INDEX}.part"
    with path.open("w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    path.replace(directory / INDEX)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_others(directory: Path, names: set[str]) -> None:
    """Remove shards that the index does not name: of earlier checkpoints, or half written."""
    for path in directory.iterdir():
        if path.name not in names and path.name.endswith((".shard", ".shard.part")):
            path.unlink(missing_ok=True)


# ---- load ---------------------------------------------------------------------------------------


def load_checkpoint(
    directory: Path, shards: Shards, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Read what this rank owns, from shards of any number of ranks, and then take it; collective.

    Returns:
        What was given as `extra`.

    Raises:
        CheckpointError: it is not there, damaged, or of another model; on all ranks, and nothing
            was changed.
    """
    error: Exception | None = None
    entries = shards.parameters.entries()
    elements: dict[OwnPiece, torch.Tensor] = {}
    try:
        index = read_index(directory)
        stored = read_shards(directory, index)
        found = stored.match(entries, type(optimizer).__name__)
        for own in shards.own_pieces():
            place = own.piece.entry
            elements[own] = found[place].read(
                PARAMETER, entries[place], own.piece.begin, own.piece.end
            )
        parameters = [only_state(parameter) for parameter in stored.parameters]
        state = dataclasses.replace(stored, parameters=parameters)
        state_dict = load_state(shards, optimizer, state)
    except (OSError, CheckpointError, KeyError, TypeError) as caught:
        error = caught
        if not isinstance(caught, CheckpointError):
            error = CheckpointError(f"{directory}: {caught!r}", path=str(directory))
    # All have read, and nobody computes with the parameters any more.
    raise_together(shards.transport, f"load from {directory}", error, CheckpointError)
    with torch.no_grad():
        for own, flat in elements.items():
            bucket = shards.bucket_of(own.piece.entry)
            begin = bucket.begin + own.piece.offset
            bucket.flat[begin : begin + own.piece.end - own.piece.begin].copy_(flat)
    optimizer.load_state_dict(state_dict)
    shards.publish()
    extra: dict[str, Any] = index["extra"]
    return extra


def read_index(directory: Path) -> dict[str, Any]:
    """The index of a checkpoint."""
    path = directory / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = ""
        if (directory / ".metadata").exists():
            hint = "; it has one of torch.distributed.checkpoint, see kadril.sharded.dcp.load"
        raise CheckpointError(
            f"there is no checkpoint in {directory}: it has no {INDEX}{hint}", path=str(path)
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}", path=str(path)) from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        found = index.get("format") if isinstance(index, dict) else None
        raise CheckpointError(
            f"{path} has format {found!r}, this version reads {FORMAT!r}", path=str(path)
        )
    return index


def read_shards(directory: Path, index: Mapping[str, Any]) -> StoredState:
    """All shards of a checkpoint, as one; elements are read when they are asked for."""
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
    groups = [each["group"] for each in index["parameters"]]
    return StoredState(
        index["optimizer"],
        index["groups"],
        [groups.count(number) for number in range(len(index["groups"]))],
        [
            StoredParameter(
                each["name"],
                tuple(each["shape"]),
                each["dtype"],
                tuple(each["dims"]),
                tuple(sorted(pieces[each["name"]], key=lambda piece: piece.begin)),
            )
            for each in index["parameters"]
        ],
    )


def only_state(parameter: StoredParameter) -> StoredParameter:
    """A parameter without its own elements, and with the optimizer's names for the rest."""
    pieces = tuple(
        StoredPiece(
            piece.begin,
            piece.end,
            {
                key.removeprefix("state."): value
                for key, value in piece.values.items()
                if key != PARAMETER
            },
        )
        for piece in parameter.pieces
    )
    return StoredParameter(parameter.name, parameter.shape, parameter.dtype, parameter.dims, pieces)
