"""Towers: which part of an image each rank has, and which halos it needs around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kadril.experiment.drawing.canvas import canvas
from kadril.nn.conv.conv_window import ConvWindow
from kadril.partition import Interval, balanced_intervals

__all__ = ["draw_towers"]

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")


def draw_towers(
    path: str | Path,
    ifmshape: Sequence[int],
    fshape: Sequence[int],
    grid: Sequence[int],
    stride: int = 1,
) -> None:
    """Draw the parts of an image, and beside it what the first layer's view of each is.

    Args:
        path: of the picture.
        ifmshape: rows and columns of the image.
        fshape: rows and columns of a filter.
        grid: ranks along rows and columns.
        stride: of the layer.

    Raises:
        ExperimentError: it cannot be drawn.
    """
    windows = [ConvWindow(size, stride, 1, 0, 0) for size in fshape]
    blocks = [balanced_intervals(n, length) for n, length in zip(ifmshape, grid, strict=True)]
    views = [
        [window.span(each) for each in balanced_intervals(window.output_size(n), length)]
        for window, n, length in zip(windows, ifmshape, grid, strict=True)
    ]
    with canvas(path, 8.4, 4.2, ncols=2) as (parts, halos):
        for axis, title in ((parts, "parts of the image"), (halos, "views: parts with halos")):
            axis.set_title(title, fontsize=10)
            axis.set_xlim(-0.5, ifmshape[1] + 0.5)
            axis.set_ylim(ifmshape[0] + 0.5, -0.5)
            axis.set_aspect("equal")
        for row in range(grid[0]):
            for column in range(grid[1]):
                rank = row * grid[1] + column
                colour = COLOURS[rank % len(COLOURS)]
                own = (blocks[0][row], blocks[1][column])
                add_box(parts, own, colour, 0.45)
                add_box(halos, (views[0][row], views[1][column]), colour, 0.22)
                middle = [(each.start + each.stop) / 2 for each in own]
                for axis in (parts, halos):
                    axis.text(middle[1], middle[0], f"rank {rank}", ha="center", va="center")


def add_box(axis: Any, box: tuple[Interval, Interval], colour: str, alpha: float) -> None:
    """Add a rectangle of rows and columns."""
    from matplotlib.patches import Rectangle

    rows, columns = box
    corner = (columns.start, rows.start)
    settings: dict[str, Any] = {"facecolor": colour, "edgecolor": colour, "linewidth": 1.5}
    axis.add_patch(Rectangle(corner, columns.size, rows.size, alpha=alpha, **settings))
