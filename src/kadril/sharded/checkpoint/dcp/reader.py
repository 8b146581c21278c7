"""A reader for torch.distributed.checkpoint that refuses files that were damaged since the save.

Metadata is a pickle; its checksum is compared before it is read, by an unpickler that makes nothing
else than metadata (`metadata_unpickler.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.dcp.checksums import METADATA, Sums
from kadril.sharded.checkpoint.dcp.metadata_unpickler import read_metadata
from kadril.sharded.checkpoint.dcp.writer import is_own_name

__all__ = ["CheckedReader"]

logger = logging.getLogger("kadril")

# Tries to read the metadata, since another checkpoint may be replacing this one.
NUM_TRIES = 3


class CheckedReader(FileSystemReader):
    """Reads from a directory; files that are missing, cut short or changed are errors.

        torch.distributed.checkpoint.load(state_dict, storage_reader=CheckedReader("last"))

    Each rank compares the files that it reads from. A checkpoint that torch itself wrote has no
    checksums: the log says so, and it is read as it is.

    Args:
        path: directory of the checkpoint.

    Attributes:
        version: checksum of the metadata that was read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._sums: Sums | None = None
        self.version = ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start over, from another directory if one is given."""
        super().reset(checkpoint_id)
        self._sums = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata of the checkpoint.

        Raises:
            CheckpointError: it is missing or damaged, or files that it names are missing.
        """
        for _ in range(NUM_TRIES - 1):
            with contextlib.suppress(CheckpointError):
                return self.read_metadata_once()
        return self.read_metadata_once()

    def read_metadata_once(self) -> Metadata:
        """Read the metadata; fails if another checkpoint replaces this one meanwhile."""
        directory = Path(self.path)
        try:
            data = (directory / METADATA).read_bytes()
        except FileNotFoundError:
            raise CheckpointError(
                f"there is no checkpoint in {directory}: it has no {METADATA}. Either nothing was"
                " saved there, or the job that saved was killed before it was whole",
                path=str(directory),
            ) from None
        self.version = hashlib.sha256(data).hexdigest()
        self._sums = Sums(directory, self.version)
        metadata = read_metadata(data, directory / METADATA)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        check_files(directory, metadata.storage_data)
        if not self._sums.is_there:
            check_origin(directory, metadata.storage_data)
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan asks for.

        Raises:
            CheckpointError: a file that holds some of it was changed.
        """
        if self._sums is not None:
            for item in plan.items:
                place = self.storage_data[item.storage_index]
                self._sums.compare(place.relative_path, item.storage_index.fqn)
        return super().read_data(plan, planner)


def check_origin(directory: Path, storage: Mapping[Any, Any]) -> None:
    """Raise `CheckpointError` if checksums are missing from a checkpoint of `AtomicWriter`."""
    own = next((each for each in storage.values() if is_own_name(each.relative_path)), None)
    if own is None:
        logger.info("%s has no checksums: torch wrote it, and it is read unchecked", directory)
        return
    raise CheckpointError(
        f"{directory} has no checksums (__*.sha256), with which it was written. Copy them too,"
        " or give storage_reader=torch.distributed.checkpoint.FileSystemReader(path) to load it"
        " without checks",
        path=str(directory),
    )


def check_files(directory: Path, storage: Mapping[Any, Any]) -> None:
    """Raise `CheckpointError` for files that are missing or too short, before anything is read."""
    ends: dict[str, int] = {}
    names: dict[str, str] = {}
    for index, place in storage.items():
        end = place.offset + place.length
        if end > ends.get(place.relative_path, 0):
            ends[place.relative_path], names[place.relative_path] = end, index.fqn
    for name, end in ends.items():
        path = directory / name
        size = path.stat().st_size if path.exists() else None
        if size is None or size < end:
            found = "is missing" if size is None else f"has {size} bytes of {end}"
            raise CheckpointError(
                f"shard {path} {found}; the checkpoint cannot be loaded without it: it has a part"
                f" of {names[name]!r}. Copy the directory with all its files, where all ranks can"
                " see it",
                parameter=names[name],
                path=str(path),
            )
