"""Finding files of a dataset in the folder that a user named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kadril.experiment.errors import DataFileError

__all__ = ["find_file", "find_files"]


def find_files(repo_path: str, folders: Sequence[str], patterns: Sequence[str]) -> list[Path]:
    """Return the files of the first pattern that has any, in the first folder that has them.

    Args:
        repo_path: what the user named; `~` is the user's own folder.
        folders: where they may lie below it, besides directly in it.
        patterns: names, which may have `*` in them.
    """
    base = Path(repo_path).expanduser()
    for folder in (base, *(base / each for each in folders)):
        for pattern in patterns:
            found = sorted(path for path in folder.glob(pattern) if path.is_file())
            if found:
                return found
    return []


def find_file(repo_path: str, folders: Sequence[str], names: Sequence[str], hint: str) -> Path:
    """Return the first file of some names.

    Raises:
        DataFileError: there is none; says where it was looked for, and what else to do.
    """
    found = find_files(repo_path, folders, names)
    if not found:
        base = Path(repo_path).expanduser()
        places = ", ".join(str(base / each) for each in ("", *folders))
        raise DataFileError(
            f"no file {' or '.join(names[:2])} in {places}; give the right repo_path (or --data on"
            f" the command line), or {hint}"
        )
    return found[0]
