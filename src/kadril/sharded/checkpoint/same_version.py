"""Agreement that all ranks have read one and the same checkpoint."""

from __future__ import annotations

from pathlib import Path

from kadril.errors import CheckpointError
from kadril.transport.agreement import allgather_json
from kadril.transport.base import Transport

__all__ = ["check_same_version"]


def check_same_version(transport: Transport, directory: Path, version: str) -> None:
    """Raise `CheckpointError` where ranks have read different checkpoints; collective."""
    if len(set(allgather_json(transport, version, "version"))) > 1:
        raise CheckpointError(
            f"ranks have read different checkpoints from {directory}: one was saved there"
            " meanwhile. Load again",
            path=str(directory),
        )
