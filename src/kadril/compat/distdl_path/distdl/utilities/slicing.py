"""Blocks of a tensor, balanced as those of `kadril.partition`, and boxes of indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kadril.partition import Interval, balanced_intervals

__all__ = [
    "assemble_index_filter",
    "assemble_slices",
    "compute_intersection",
    "compute_nd_slice_shape",
    "compute_nd_slice_volume",
    "compute_partition_intersection",
    "compute_start_index",
    "compute_stop_index",
    "compute_subshape",
    "filtered_range_index",
    "np",
    "range_index",
    "worker_layout",
]

Index = npt.NDArray[Any]


def block_at(P_shape: npt.ArrayLike, index: npt.ArrayLike, shape: npt.ArrayLike) -> list[Interval]:
    """Return the block at a position, dim by dim; one number stands for all dims."""
    values = np.broadcast_arrays(*map(np.atleast_1d, (P_shape, index, shape)))
    lengths, positions, sizes = (each.astype(np.int64).tolist() for each in values)
    return [
        balanced_intervals(size, length)[position]
        for length, position, size in zip(lengths, positions, sizes, strict=True)
    ]


def compute_subshape(P_shape: npt.ArrayLike, index: npt.ArrayLike, shape: npt.ArrayLike) -> Index:
    """Return the shape of the block at a position."""
    return np.array([each.size for each in block_at(P_shape, index, shape)])


def compute_start_index(
    P_shape: npt.ArrayLike, index: npt.ArrayLike, shape: npt.ArrayLike
) -> Index:
    """Return the first index of the block at a position, in the global tensor."""
    return np.array([each.start for each in block_at(P_shape, index, shape)])


def compute_stop_index(P_shape: npt.ArrayLike, index: npt.ArrayLike, shape: npt.ArrayLike) -> Index:
    """Return one more than the last index of the block at a position."""
    return np.array([each.stop for each in block_at(P_shape, index, shape)])


def compute_intersection(
    r0_start_index: npt.ArrayLike,
    r0_stop_index: npt.ArrayLike,
    r1_start_index: npt.ArrayLike,
    r1_stop_index: npt.ArrayLike,
) -> tuple[Index, Index, Index]:
    """Return start, stop and shape of the intersection of two boxes."""
    start = np.maximum(r0_start_index, r1_start_index)
    stop = np.minimum(r0_stop_index, r1_stop_index)
    return start, stop, np.maximum(stop - start, 0)


def assemble_slices(start_index: Sequence[int], stop_index: Sequence[int]) -> tuple[slice, ...]:
    """Return a box as slices."""
    return tuple(
        slice(start, stop, None) for start, stop in zip(start_index, stop_index, strict=False)
    )


def compute_partition_intersection(
    P_x_r_shape: npt.ArrayLike,
    P_x_r_index: npt.ArrayLike,
    P_x_s_shape: npt.ArrayLike,
    P_x_s_index: npt.ArrayLike,
    x_shape: npt.ArrayLike,
) -> tuple[slice, ...] | None:
    """Return the intersection of two blocks as slices of the first; None where it is empty."""
    first = compute_start_index(P_x_r_shape, P_x_r_index, x_shape)
    start, _, shape = compute_intersection(
        first,
        compute_stop_index(P_x_r_shape, P_x_r_index, x_shape),
        compute_start_index(P_x_s_shape, P_x_s_index, x_shape),
        compute_stop_index(P_x_s_shape, P_x_s_index, x_shape),
    )
    if not shape.all():
        return None
    return assemble_slices((start - first).tolist(), (start - first + shape).tolist())


def compute_nd_slice_shape(slices: Sequence[slice]) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(each.stop - each.start for each in slices)


def compute_nd_slice_volume(slices: Sequence[slice]) -> int:
    """Return the number of elements of a box."""
    return math.prod(compute_nd_slice_shape(slices))


def range_index(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all positions of a shape; the last axis runs fastest."""
    yield from itertools.product(*(range(int(length)) for length in shape))


def filtered_range_index(
    shape: Sequence[int],
    filter: Sequence[int | None],
) -> Iterator[tuple[int, ...]]:
    """Yield the positions that match a filter, in which None allows any value."""
    for index in range_index(shape):
        if all(want in (None, have) for have, want in zip(index, filter, strict=True)):
            yield index


def assemble_index_filter(
    index: Sequence[int], dims: Sequence[int], invert: bool = False
) -> tuple[int | None, ...]:
    """Return a filter for the values of an index in some dims; in all others if inverted."""
    return tuple(value if (dim in dims) != invert else None for dim, value in enumerate(index))


def worker_layout(shape: Sequence[int] | Index) -> npt.NDArray[np.int64]:
    """Return the rank of the worker at each position."""
    lengths = [int(length) for length in shape]
    return np.arange(math.prod(lengths), dtype=np.int64).reshape(lengths)
