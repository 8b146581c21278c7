"""A writer for torch.distributed.checkpoint that replaces a checkpoint in one move.

torch's own writes over the files of the last checkpoint: whoever is killed meanwhile has none. This
one gives its files new names, and moves the metadata, which names them, into place last. Readers
notice no difference.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from kadril.sharded.checkpoint import sync_directory

__all__ = ["METADATA", "AtomicWriter"]

METADATA = ".metadata"
SUFFIX = ".distcp"
PART = ".part-"


class AtomicWriter(FileSystemWriter):
    """Writes to a directory; what was there before stays whole until the new checkpoint is.

        torch.distributed.checkpoint.save(state_dict, storage_writer=AtomicWriter("last"))

    Args:
        path: of the directory, which all ranks see.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the directory."""
        Path(self.path).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Names that no earlier checkpoint has used."""
        token = secrets.token_hex(8)
        prepared = super().prepare_global_plan(plans)
        for plan in prepared:
            plan.storage_data.prefix = f"__{token}{plan.storage_data.prefix}"
        return prepared

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Move the metadata into place, and remove what it does not name."""
        directory = Path(self.path)
        sync_directory(directory)
        # What the base class replaces, it removes first: so it replaces nothing.
        with tempfile.TemporaryDirectory(dir=directory, prefix=PART) as part:
            self.path = part
            try:
                super().finish(metadata, results)
            finally:
                self.path = directory
            Path(part, METADATA).replace(directory / METADATA)
        sync_directory(directory)
        remove_others(directory, metadata.storage_data)

    def storage_meta(self) -> StorageMeta | None:
        """What the metadata says of where it was written."""
        return StorageMeta(save_id=self.save_id)


def remove_others(directory: Path, storage: Mapping[Any, Any]) -> None:
    """Remove files of earlier checkpoints, and those of whoever was killed."""
    named = {each.relative_path for each in storage.values()}
    for path in directory.iterdir():
        if path.suffix == SUFFIX and path.name not in named:
            path.unlink(missing_ok=True)
        elif path.name.startswith(PART):
            shutil.rmtree(path, ignore_errors=True)
