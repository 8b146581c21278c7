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

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.failure_reason import reason_of
from kadril.sharded.checkpoint.shard_file import ShardFile, write_shard
from kadril.sharded.ownership.agreement import allgather_json, raise_together
from kadril.sharded.ownership.bucket import OwnPiece
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.optimizer_state import group_options, load_state, piece_values, put_state
from kadril.sharded.state.stored_state import StoredParameter, StoredPiece, StoredState
from kadril.transport.base import Transport

__all__ = [
    "check_same_version",
    "load_checkpoint",
    "save_checkpoint",
    "sync_directory",
    "told_in_the_log",
]

logger = logging.getLogger("kadril")

FORMAT = "kadril.sharded.checkpoint.1"
CHECKSUM = "sha256"  # key of the checksum of the rest of the index
INDEX = "index.json"
OWN_NAME = re.compile(r"[0-9a-f]{16}-\d{5}-of-\d{5}\.shard(\.part)?")
PARAMETER = "parameter"  # key of the parameter's own elements, beside those of its state


def save_checkpoint(
    transport: Transport,
    directory: Path,
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
) -> None:
    """Write parameters and state, each rank what it owns; collective.

    Args:
        transport: over the ranks of the shards, for this call.
        directory: that all ranks see.
        shards: parameters.
        optimizer: of this rank's pieces.
        extra: what else to keep.

    Raises:
        CheckpointError: a rank could not write, or has something that JSON cannot hold; on all
            ranks. What was there before is as it was. It names the parameter, where it is one's.
    """
    error: Exception | None = None
    described: dict[str, Any] = {}
    token = agree_on_token(transport)
    name = f"{token}-{transport.rank:05d}-of-{transport.size:05d}.shard"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        described = write_shard(directory / name, own_values(shards, optimizer))
    except Exception as caught:  # users' optimizers keep what they like, and all ranks wait below
        error = not_saved(directory / name, caught)
    raise_together(transport, "save", error, CheckpointError)
    files = allgather_json(transport, described, "save")
    if transport.rank == 0:
        try:
            write_index(directory, index_of(shards, optimizer, files, extra))
        except Exception as caught:  # options and `extra` are users' as well
            error = not_saved(directory / INDEX, caught)
    raise_together(transport, "save", error, CheckpointError)
    if transport.rank == 0:
        with told_in_the_log(directory):
            remove_others(directory, {file["name"] for file in files})


def not_saved(path: Path, caught: Exception) -> CheckpointError:
    """What to raise for a file that could not be written."""
    parameter = caught.parameter if isinstance(caught, CheckpointError) else ""
    error = CheckpointError(
        f"{reason_of(caught)}: {path} was not written, and what was saved before is as it was",
        parameter=parameter,
        path=str(path),
    )
    error.__cause__ = caught
    return error


@contextlib.contextmanager
def told_in_the_log(directory: Path) -> Iterator[None]:
    """What goes wrong after a checkpoint is in its place is only told."""
    try:
        yield
    except OSError as error:
        logger.warning("%s is saved, but could not be tidied up: %s", directory, error)


def agree_on_token(transport: Transport) -> str:
    """A name for this set of files that no other has; collective."""
    return str(allgather_json(transport, secrets.token_hex(8), "token")[0])


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
    """Replace the index in one move, after everything that it names is durable.

    It has a checksum of itself: options and what users keep lie in it.
    """
    plain = json.loads(json.dumps(index))
    text = json.dumps({**plain, CHECKSUM: checksum_of(plain)}, indent=1)
    sync_directory(directory)
    path = directory / f"{INDEX}.part"
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.replace(directory / INDEX)
    # It is saved; what fails from here on is no reason to say otherwise.
    with told_in_the_log(directory):
        sync_directory(directory)


def checksum_of(index: Mapping[str, Any]) -> str:
    """SHA-256 of an index, as JSON has it."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


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
        if path.name not in names and OWN_NAME.fullmatch(path.name):
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
        found = stored.match(entries, optimizer)
        for own in shards.own_pieces():
            place = own.piece.entry
            elements[own] = found[place].read(
                PARAMETER, entries[place], own.piece.begin, own.piece.end
            )
        parameters = [only_state(parameter) for parameter in stored.parameters]
        state = dataclasses.replace(stored, parameters=parameters)
        state_dict = load_state(shards, optimizer, state)
    except Exception as caught:  # files may have anything in them, and all ranks wait below
        error = caught
        if not isinstance(caught, CheckpointError):
            error = CheckpointError(f"{directory}: {caught!r}", path=str(directory))
    # All have read, and nobody computes with the parameters any more.
    raise_together(shards.transport, "load", error, CheckpointError)
    check_same_version(shards.transport, directory, index[CHECKSUM])
    with torch.no_grad():
        for own, flat in elements.items():
            bucket = shards.bucket_of(own.piece.entry)
            begin = bucket.begin + own.piece.offset
            bucket.flat[begin : begin + own.piece.end - own.piece.begin].copy_(flat)
    put_state(optimizer, state_dict, keeps_dtypes=True)
    shards.publish()
    extra: dict[str, Any] = index["extra"]
    return extra


def check_same_version(transport: Transport, directory: Path, version: str) -> None:
    """Raise `CheckpointError` where ranks have read different checkpoints; collective."""
    if len(set(allgather_json(transport, version, "version"))) > 1:
        raise CheckpointError(
            f"ranks have read different checkpoints from {directory}: one was saved there"
            " meanwhile. Load again",
            path=str(directory),
        )


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
    rest = {key: value for key, value in index.items() if key != CHECKSUM}
    if index.get(CHECKSUM) != checksum_of(rest):
        raise CheckpointError(
            f"{path} is damaged: its checksum is not the one that was written", path=str(path)
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
    return dataclasses.replace(parameter, pieces=pieces)
