"""The index of a checkpoint: a JSON file that names the shards, and what else belongs to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.durable_files import durable_file, log_untidy, sync_directory
from kadril.sharded.ownership.group_options import group_options
from kadril.sharded.ownership.shards import Shards

__all__ = ["CHECKSUM", "INDEX", "make_index", "read_index", "write_index"]

# Written into every index: it stays when modules move. A reader refuses any other.
FORMAT = "kadril.sharded.checkpoint.1"
CHECKSUM = "sha256"  # key of the checksum of the rest of the index
INDEX = "index.json"


def make_index(
    shards: Shards,
    optimizer: torch.optim.Optimizer,
    files: list[dict[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the contents of the index."""
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
    """Return options in the types that JSON has."""
    return {
        key: value.item() if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }


def write_index(directory: Path, index: Mapping[str, Any]) -> None:
    """Replace the index in one move, after everything that it names is durable.

    It ends with a checksum of itself, as it holds options and what users keep beside them.
    """
    plain = json.loads(json.dumps(index))
    text = json.dumps({**plain, CHECKSUM: checksum_of(plain)}, indent=1)
    sync_directory(directory)
    path = directory / f"{INDEX}.part"
    with durable_file(path) as file:
        file.write(text)
    path.replace(directory / INDEX)
    # The checkpoint is saved; what fails from here on does not change that.
    with log_untidy(directory):
        sync_directory(directory)


def checksum_of(index: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an index, without its own checksum."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def read_index(directory: Path) -> dict[str, Any]:
    """Read the index of a checkpoint.

    Raises:
        CheckpointError: it is missing, damaged, or of another format.
    """
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
    except (ValueError, RecursionError) as error:
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
