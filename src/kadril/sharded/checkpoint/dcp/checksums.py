"""Checksums of a torch.distributed.checkpoint: a file beside the others, which torch never opens.

    __4f1c.sha256      one line for each file, as `sha256sum --check` reads it:

        9f86d081...  __4f1c__0_0.distcp
        60303ae2...  __4f1c__1_0.distcp
        fd61a03a...  .metadata

It is written before the metadata is moved into place. A process killed in between leaves two of
them, of which one has the checksum of the metadata that is in place: that one counts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.durable_files import checksum, durable_file

__all__ = ["METADATA", "Sums", "name_of_sums", "own_sums", "write_sums"]

METADATA = ".metadata"


def name_of_sums() -> str:
    """Return a name that no other file has."""
    return f"__{secrets.token_hex(8)}.sha256"


def own_sums(directory: Path) -> list[Path]:
    """Return the files that have such names; others may be the user's."""
    return [
        path
        for path in sorted(directory.glob("__*.sha256"))
        if re.fullmatch(r"__[0-9a-f]{16}", path.stem)
    ]


def write_sums(path: Path, sums: Mapping[str, str]) -> None:
    """Write checksums by name of file, durably."""
    with durable_file(path) as file:
        file.writelines(f"{value}  {name}\n" for name, value in sums.items())


class Sums:
    """The checksums of a checkpoint's files.

    Args:
        directory: directory of the checkpoint.
        version: checksum of its metadata.

    Attributes:
        is_there: whether the checkpoint has checksums; one that torch itself wrote has none.

    Raises:
        CheckpointError: there are checksums, but not those of the metadata in place.
    """

    def __init__(self, directory: Path, version: str) -> None:
        self._directory = directory
        self._sums: dict[str, str] = {}
        self._compared: set[str] = set()
        candidates = own_sums(directory)
        self.is_there = bool(candidates)
        for path in candidates:
            sums = read_sums(path)
            if sums.get(METADATA) == version:
                self._sums = sums
                return
        if candidates:
            raise CheckpointError(
                f"{directory / METADATA} is damaged: its checksum is not the one in"
                f" {', '.join(each.name for each in candidates)}. If torch wrote another checkpoint"
                " over this one, remove these files to load it without checks",
                path=str(directory / METADATA),
            )

    def compare(self, name: str, parameter: str) -> None:
        """Raise `CheckpointError` if the checksum of a file is wrong; computed once for each file.

        Args:
            name: name of the file.
            parameter: parameter to name in the message.
        """
        if not self.is_there or name in self._compared:
            return
        path = self._directory / name
        if checksum(path) != self._sums.get(name):
            raise CheckpointError(
                f"shard {path} is damaged: its checksum is not the one that was written; it has a"
                f" part of {parameter!r}",
                parameter=parameter,
                path=str(path),
            )
        self._compared.add(name)


def read_sums(path: Path) -> dict[str, str]:
    """Read checksums by name of file; other lines are ignored."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}  # its checkpoint was replaced just now
    pairs = (line.split("  ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
