"""The canvas of all pictures: a figure that needs no screen, and its file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kadril.experiment.errors import ExperimentError

__all__ = ["canvas", "check_picture"]


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
    figure = make_figure(width, height)
    yield figure.subplots(**grid)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path} cannot be drawn: {error}") from error


def check_picture(path: str | Path) -> None:
    """Refuse what could not be drawn later.

    Raises:
        ExperimentError: matplotlib is not there, or does not know the suffix.
    """
    suffix = Path(path).suffix[1:].lower()
    known = make_figure(1, 1).canvas.get_supported_filetypes()
    if suffix and suffix not in known:
        raise ExperimentError(f"{path} cannot be drawn: its suffix is none of {', '.join(known)}")


def make_figure(width: float, height: float) -> Any:
    """Return a figure of matplotlib that needs no screen; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ExperimentError("pictures need matplotlib: pip install 'kadril[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")
