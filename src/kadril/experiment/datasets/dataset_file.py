"""The file in which a rank keeps its part of a dataset.

An archive of numpy arrays without pickles, and a header that says what they were made for. It is
written beside its place and then moved there, so that there is never half a file; and it is only
used for what it was made for.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kadril.experiment.errors import DataFileError
from kadril.experiment.files.atomic_file import atomic_file

__all__ = ["DatasetFile"]

FORMAT = "kadril dataset"
VERSION = 1


class DatasetFile:
    """A file with this rank's part of a dataset.

    Args:
        path: of the file.
        about: what the data depends on: dataset, rank, size, grid, sampling, source.
    """

    def __init__(self, path: str, about: Mapping[str, Any]) -> None:
        self.path = Path(path).expanduser()
        self.about = {"format": FORMAT, "version": VERSION, **about}

    def write(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the file; whole, or not at all.

        Raises:
            DataFileError: it cannot be written.
        """
        header = np.frombuffer(json.dumps(self.about).encode(), dtype=np.uint8)
        try:
            with atomic_file(self.path) as file:
                np.savez(file, header=header, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DataFileError(f"{self.path} cannot be written: {error}") from error

    def read(self) -> dict[str, npt.NDArray[Any]]:
        """Read the arrays.

        Raises:
            DataFileError: it is no such file, or was made for another size or sampling. It stays
                as it is.
        """
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            about = json.loads(arrays.pop("header").tobytes())
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise DataFileError(
                f"{self.path} is no dataset that kadril has kept ({error}). Pickles are not read,"
                " since they can run code: give another serialized_path, or remove the file"
            ) from error
        if not isinstance(about, dict):
            about = {}
        differing = [
            f"{key} {about.get(key)!r} there, {value!r} here"
            for key, value in self.about.items()
            if about.get(key) != value
        ]
        if differing:
            raise DataFileError(
                f"{self.path} was made for another run: {'; '.join(differing)}. Remove it, or give"
                " another serialized_path ({rank} and {size} in it keep runs of different sizes"
                " apart)"
            )
        return arrays
