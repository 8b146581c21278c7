"""The blocks of a tensor on all workers: arrays with the axes of the partition and one of dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .slicing import assemble_slices, compute_intersection, compute_subshape, range_index

# Programs import everything from here, and take numpy along with it.
__all__ = [
    "assemble_slices",
    "compute_intersection",
    "compute_subtensor_intersection_slice",
    "compute_subtensor_shapes_balanced",
    "compute_subtensor_start_indices",
    "compute_subtensor_stop_indices",
    "np",
    "range_index",
]

Shapes = npt.NDArray[np.int64]


def compute_subtensor_shapes_balanced(
    global_tensor_structure: Any, P_tensor_shape: npt.ArrayLike
) -> Shapes:
    """Return the shape of each block of a balanced tensor."""
    lengths = [int(length) for length in np.atleast_1d(P_tensor_shape)]
    sizes = np.atleast_1d(np.array(tuple(global_tensor_structure.shape), dtype=np.int64))
    shapes = np.zeros([*lengths, len(lengths)], dtype=np.int64)
    for index in range_index(lengths):
        shapes[index] = compute_subshape(lengths, index, sizes)
    return shapes


def compute_subtensor_stop_indices(shapes: Shapes) -> Shapes:
    """Return one more than the last index of each block, in the global tensor."""
    stops = shapes.copy()
    for dim in range(shapes.ndim - 1):
        stops[..., dim] = np.cumsum(shapes[..., dim], axis=dim)
    return stops


def compute_subtensor_start_indices(shapes: Shapes) -> Shapes:
    """Return the first index of each block, in the global tensor."""
    return compute_subtensor_stop_indices(shapes) - shapes


def compute_subtensor_intersection_slice(
    x_start_index: npt.ArrayLike,
    x_stop_index: npt.ArrayLike,
    y_start_index: npt.ArrayLike,
    y_stop_index: npt.ArrayLike,
) -> tuple[slice, ...] | None:
    """Return the intersection of boxes x and y as slices of x; None where it is empty.

    Raises:
        ValueError: not lists of indices.
    """
    bounds = [
        np.atleast_1d(each) for each in (x_start_index, x_stop_index, y_start_index, y_stop_index)
    ]
    if any(each.ndim != 1 for each in bounds):
        raise ValueError("boxes are given by lists of start and stop indices")
    start, _, shape = compute_intersection(*bounds)
    if not shape.all():
        return None
    first = start - bounds[0]
    return assemble_slices(first.tolist(), (first + shape).tolist())
