"""The file of a model: whole weights, so that any number of ranks can go on from it.

Written by one rank, beside its place and then moved there; read with torch's loader of weights,
which runs no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kadril.experiment.errors import ExperimentError
from kadril.experiment.files.atomic_file import atomic_file

__all__ = ["read_checkpoint", "write_checkpoint"]

FORMAT = "kadril experiment"
VERSION = 1


def write_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write a state; whole, or not at all.

    Raises:
        ExperimentError: it cannot be written.
    """
    path = Path(path).expanduser()
    try:
        with atomic_file(path) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
    except OSError as error:
        raise ExperimentError(f"{path} cannot be written: {error}") from error


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a state.

    Raises:
        ExperimentError: there is no such file, or it is none of ours.
    """
    path = Path(path).expanduser()
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        if state["format"] != FORMAT or state["version"] != VERSION:
            raise KeyError(f"format {state['format']!r}, version {state['version']!r}")
    except FileNotFoundError as error:
        raise ExperimentError(f"there is no checkpoint {path}") from error
    except Exception as error:  # torch raises almost anything for bytes that it did not write
        raise ExperimentError(
            f"{path} is no checkpoint of an experiment of version {VERSION}: {error}"
        ) from error
    return state
