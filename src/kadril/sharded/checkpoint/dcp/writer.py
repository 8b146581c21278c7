"""A writer for torch.distributed.checkpoint that replaces a checkpoint in one move.

Torch's own writer writes over the files of the last checkpoint: a job that is killed meanwhile has
none. This one gives its files new names, and moves the metadata, which names them, into place last.
Checksums of all files lie beside them (checksums.py). Torch's readers notice no difference.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from kadril.sharded.checkpoint.dcp.checksums import METADATA, name_of_sums, own_sums, write_sums
from kadril.sharded.checkpoint.durable_files import checksum, log_untidy, sync_directory

__all__ = ["AtomicWriter", "is_own_name"]

SUFFIX = ".distcp"
PART = ".part-"


def is_own_name(name: str) -> bool:
    """Whether a file has a name that this writer gives; torch's names have no token."""
    return re.fullmatch(rf"__[0-9a-f]{{16}}__\d+_\d+\{SUFFIX}", name) is not None


@dataclasses.dataclass(frozen=True)
class SummedResult(WriteResult):
    """A write result with the checksum of the file that it is in."""

    sum: str


class AtomicWriter(FileSystemWriter):
    """Writes to a directory; what was there before stays whole until the new checkpoint is.

        torch.distributed.checkpoint.save(state_dict, storage_writer=AtomicWriter("last"))

    Args:
        path: directory that all ranks see.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the directory."""
        Path(self.path).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give files names that no earlier checkpoint has used."""
        token = secrets.token_hex(8)
        prepared = super().prepare_global_plan(plans)
        for plan in prepared:
            plan.storage_data.prefix = f"__{token}{plan.storage_data.prefix}"
        return prepared

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part of the plan, and compute checksums."""
        results = super().write_data(plan, planner).wait()
        names = {each.storage_data.relative_path for each in results}
        sums = {name: checksum(Path(self.path, name)) for name in names}
        summed: Future[list[WriteResult]] = Future()
        summed.set_result(
            [
                SummedResult(
                    each.index,
                    each.size_in_bytes,
                    each.storage_data,
                    sums[each.storage_data.relative_path],
                )
                for each in results
            ]
        )
        return summed

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the checksums, move the metadata into place, and remove what it does not name."""
        directory = Path(self.path)
        sums = {
            each.storage_data.relative_path: each.sum
            for one in results
            for each in one
            if isinstance(each, SummedResult)
        }
        # The base class removes a file before it replaces it, so it gets an empty directory.
        with tempfile.TemporaryDirectory(dir=directory, prefix=PART) as part:
            self.path = part
            try:
                super().finish(metadata, results)
            finally:
                self.path = directory
            made = Path(part, METADATA)
            of_sums = name_of_sums()
            write_sums(directory / of_sums, {**sums, METADATA: checksum(made)})
            sync_directory(directory)
            made.replace(directory / METADATA)
        # The checkpoint is saved; what cannot be tidied up does not change that.
        with log_untidy(directory):
            sync_directory(directory)
            remove_others(directory, {*sums, of_sums})

    def storage_meta(self) -> StorageMeta | None:
        """Return what the metadata says about the storage."""
        return StorageMeta(save_id=self.save_id)


def remove_others(directory: Path, names: Collection[str]) -> None:
    """Remove files of earlier checkpoints, and of saves that were killed."""
    for path in [*directory.glob(f"*{SUFFIX}"), *own_sums(directory)]:
        if path.name not in names:
            path.unlink(missing_ok=True)
    for path in directory.glob(f"{PART}*"):
        shutil.rmtree(path, ignore_errors=True)
