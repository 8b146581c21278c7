"""Filters of a layer whose filters are not shared: each as a small image, where it lies."""

from __future__ import annotations

from pathlib import Path

import torch

from kadril.experiment.drawing.canvas import canvas

__all__ = ["draw_filters", "mosaic"]

MOST = 12  # positions along a dim: more would be too small to see


def mosaic(filters: torch.Tensor) -> torch.Tensor:
    """Return filters side by side, with a line between them, from 0 to 1.

    Args:
        filters: rows x columns of positions x rows x columns of a filter.
    """
    rows, columns, height, width = filters.shape
    low = filters.amin((2, 3), keepdim=True)
    high = filters.amax((2, 3), keepdim=True)
    scaled = (filters - low) / torch.where(high > low, high - low, torch.ones_like(high))
    page = torch.ones(rows * (height + 1) + 1, columns * (width + 1) + 1, dtype=filters.dtype)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + 1) + 1, column * (width + 1) + 1
            page[top : top + height, left : left + width] = scaled[row, column]
    return page


def draw_filters(filters: torch.Tensor, path: str | Path) -> None:
    """Draw the filters of all maps; of positions that lie evenly over the image where many.

    Args:
        filters: maps x rows x columns x channels x the filter, as `GB.filters` gives them; the mean
            over channels is drawn.
        path: of the picture.

    Raises:
        ExperimentError: it cannot be drawn.
    """
    means = filters.detach().mean(3)
    rows, columns = (
        torch.linspace(0, size - 1, min(size, MOST)).round().long() for size in means.shape[1:3]
    )
    count = len(means)
    across = min(4, count)
    down = -(-count // across)
    with canvas(path, 2.6 * across, 2.8 * down, nrows=down, ncols=across, squeeze=False) as axes:
        for place, axis in enumerate(axes.flat):
            axis.set_axis_off()
            if place < count:
                axis.imshow(mosaic(means[place][rows][:, columns]).numpy(), cmap="gray")
                axis.set_title(f"map {place}", fontsize=8)
