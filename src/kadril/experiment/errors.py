"""Errors of experiments.

KadrilError
+-- ExperimentError                 (also a ValueError)
    +-- ExperimentFileError         file, line and column
    |   +-- UnknownClassError       a tag that names no registered class
    |   +-- UnknownKeyError         a key that the class does not take
    |   +-- BadValueError           a value of the wrong kind, or one that is missing
    +-- GridError                   an image or a layer is too small for the grid of ranks
    +-- DataFileError               a file of a dataset is missing, damaged, or made for another
                                    run
"""

from __future__ import annotations

from kadril.errors import KadrilError

__all__ = [
    "BadValueError",
    "DataFileError",
    "ExperimentError",
    "ExperimentFileError",
    "GridError",
    "UnknownClassError",
    "UnknownKeyError",
]


class ExperimentError(KadrilError, ValueError):
    """Something about an experiment that cannot work."""


class ExperimentFileError(ExperimentError):
    """Something is wrong in an experiment's YAML file.

    Attributes:
        file: its name.
        line: from 1.
        column: from 1.
    """

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0) -> None:
        place = f"{file}:{line}:{column}: " if file else ""
        super().__init__(place + message)
        self.file = file
        self.line = line
        self.column = column


class UnknownClassError(ExperimentFileError):
    """A tag names a class that is not registered."""


class UnknownKeyError(ExperimentFileError):
    """A class does not take such a key."""


class BadValueError(ExperimentFileError):
    """A value is of the wrong kind, or missing."""


class GridError(ExperimentError):
    """The ranks cannot be arranged so that each has a part of every layer."""


class DataFileError(ExperimentError):
    """A file of a dataset cannot be used."""
