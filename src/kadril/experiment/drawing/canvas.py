"""The canvas of all pictures: a figure that needs no screen, and its file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kadril.experiment.errors import ExperimentError

__all__ = ["canvas"]


@contextlib.contextmanager
def canvas(path: str | Path, width: float, height: float, **grid: Any) -> Iterator[Any]:
    """Give the axes of a figure, which is written when the `with` block ends.

    Args:
        path: of the file; its suffix says the format.
        width: in inches.
        height: in inches.
        grid: arguments of `Figure.subplots`.

    Raises:
        ExperimentError: matplotlib is not there, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ExperimentError("pictures need matplotlib: pip install 'kadril[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure.subplots(**grid)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path} cannot be drawn: {error}") from error
