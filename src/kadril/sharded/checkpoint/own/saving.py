"""Writing a checkpoint: a directory with a shard of each rank, and an index that is written last.

    index.json                      names the files that belong together, with their checksums
    7f3a-00000-of-00002.shard       what rank 0 owns: parameters and state
    7f3a-00001-of-00002.shard

Shards are written under new names, and made durable, before the index is replaced in one move.
A job that is killed at any moment leaves either the old index with all its files or the new one
with all of its; files that no index names are removed by the next `save`.

All ranks see the same directory. It holds JSON and plain bytes: loading it runs no code.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.durable_files import failure_reason, log_untidy
from kadril.sharded.checkpoint.own.index_file import INDEX, make_index, write_index
from kadril.sharded.checkpoint.own.shard_file import PARAMETER, STATE, write_shard
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.state.own_state import own_pieces
from kadril.transport.agreement import allgather_json, raise_on_all
from kadril.transport.base import Transport

__all__ = ["save_checkpoint"]

SHARD_NAME = re.compile(r"[0-9a-f]{16}-\d{5}-of-\d{5}\.shard(\.part)?")


def save_checkpoint(
    transport: Transport,
    directory: Path,
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
) -> None:
    """Write parameters and state; each rank writes what it owns. Collective.

    Args:
        transport: dedicated transport over the ranks.
        directory: directory that all ranks see.
        shards: the parameters.
        optimizer: optimizer of this rank's pieces.
        extra: what else to keep, in types that JSON has.

    Raises:
        CheckpointError: a rank could not write, or has something that JSON cannot hold; on all
            ranks. What was there before is unchanged. It names the parameter, where it was one.
    """
    error: Exception | None = None
    described: dict[str, Any] = {}
    token = agree_on_token(transport)
    name = f"{token}-{transport.rank:05d}-of-{transport.size:05d}.shard"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        described = write_shard(directory / name, own_values(shards, optimizer))
    except Exception as caught:  # optimizers of users keep anything, and all ranks wait below
        error = not_saved(directory / name, caught)
    raise_on_all(transport, "save", error, CheckpointError)
    files = allgather_json(transport, described, "save")
    if transport.rank == 0:
        try:
            write_index(directory, make_index(shards, optimizer, files, extra))
        except Exception as caught:  # options and `extra` may hold anything, too
            error = not_saved(directory / INDEX, caught)
    raise_on_all(transport, "save", error, CheckpointError)
    if transport.rank == 0:
        with log_untidy(directory):
            remove_others(directory, {file["name"] for file in files})


def not_saved(path: Path, caught: Exception) -> CheckpointError:
    """Return the error for a file that could not be written."""
    parameter = caught.parameter if isinstance(caught, CheckpointError) else ""
    error = CheckpointError(
        f"{failure_reason(caught)}: {path} was not written, and what was saved before is as it was",
        parameter=parameter,
        path=str(path),
    )
    error.__cause__ = caught
    return error


def agree_on_token(transport: Transport) -> str:
    """Choose a name for this set of files that no other has; collective."""
    return str(allgather_json(transport, secrets.token_hex(8), "token")[0])


def own_values(shards: Shards, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return what this rank owns of each parameter: its elements, and their state."""
    pieces = own_pieces(shards, optimizer)
    for own in shards.own_pieces():
        bucket = shards.bucket_of(own.piece.entry)
        piece = pieces[bucket.entry_of(own.piece).name]
        piece["state"] = {STATE + key: value for key, value in piece["state"].items()}
        elements = bucket.elements_of(own.piece).detach()
        piece["state"][PARAMETER] = {"kind": "cut", "value": elements}
    return pieces


def remove_others(directory: Path, names: set[str]) -> None:
    """Remove shards that the index does not name: of earlier checkpoints, or unfinished."""
    for path in directory.iterdir():
        if path.name not in names and SHARD_NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)
