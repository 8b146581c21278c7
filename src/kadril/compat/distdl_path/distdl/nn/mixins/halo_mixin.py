"""Halos for layers of users: the elements that a worker needs of its direct neighbours.

x        |  n elements  |              n: what the worker has, [s, s + n)
needed   [left ... right]              for its outputs, which are balanced

halo = (s - left, right - (s + n - 1));  negative where the worker needs less than it has
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...utilities.slicing import compute_start_index, compute_subshape
from ...utilities.tensor_decomposition import compute_subtensor_start_indices

__all__ = ["HaloMixin"]

Array = npt.NDArray[np.int64]


def filled(values: npt.ArrayLike, num_dims: int, default: int) -> Array:
    """Return values for all dims, given for the last ones, with a default for the others."""
    given = np.atleast_1d(np.asarray(values, dtype=np.int64))
    return np.concatenate([np.full(num_dims - len(given), default, dtype=np.int64), given])


class HaloMixin:
    """Halo widths, by the `_compute_min_input_range` and `_compute_max_input_range` of a subclass.

    Only direct neighbours are considered. The layers of this package, whose halos are those of
    `kadril.nn`, have no such limit.
    """

    _compute_min_input_range: Any
    _compute_max_input_range: Any

    def _compute_exchange_info(
        self,
        x_global_shape: npt.ArrayLike,
        kernel_size: npt.ArrayLike,
        stride: npt.ArrayLike,
        padding: npt.ArrayLike,
        dilation: npt.ArrayLike,
        partition_active: bool,
        partition_shape: npt.ArrayLike,
        partition_index: npt.ArrayLike,
        subtensor_shapes: Array | None = None,
    ) -> tuple[Any, Any, Any, Any]:
        """Return halo widths, sizes of what is received and sent, and the range that is needed.

        Returns:
            Four arrays with a row (before, after) for each dim: halo widths, elements received
            from the neighbours, elements sent to them, and start and stop of what is needed within
            the block with its halos; four values None on workers without a block.
        """
        if not partition_active:
            return None, None, None, None
        sizes = np.atleast_1d(np.asarray(x_global_shape, dtype=np.int64))
        lengths = np.asarray(partition_shape, dtype=np.int64)
        window = (
            filled(kernel_size, len(sizes), 1),
            filled(stride, len(sizes), 1),
            filled(padding, len(sizes), 0),
            filled(dilation, len(sizes), 1),
        )
        index = np.asarray(partition_index, dtype=np.int64)
        arguments = (sizes, *window, subtensor_shapes)
        signed = self._signed_halo(lengths, index, *arguments)
        halo = np.maximum(signed, 0)
        send = np.zeros_like(halo)
        for axis, length in enumerate(lengths):
            for side, step in ((0, -1), (1, 1)):
                neighbour = index.copy()
                neighbour[axis] += step
                if 0 <= neighbour[axis] < length:
                    theirs = np.maximum(self._signed_halo(lengths, neighbour, *arguments), 0)
                    send[axis, side] = theirs[axis, 1 - side]
        local = block_of(lengths, index, sizes, subtensor_shapes)[1]
        needed = np.stack([np.maximum(0, -signed[:, 0]), local + halo.sum(axis=1)], axis=1)
        return halo, halo.copy(), send, needed

    def _compute_out_shape(
        self, in_shape: Array, kernel_size: Array, stride: Array, padding: Array, dilation: Array
    ) -> Array:
        """Return the global shape of the output."""
        result: Array = (in_shape + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1
        return result

    def _signed_halo(
        self,
        lengths: Array,
        index: Array,
        sizes: Array,
        kernel_size: Array,
        stride: Array,
        padding: Array,
        dilation: Array,
        subtensor_shapes: Array | None,
    ) -> Array:
        start, local = block_of(lengths, index, sizes, subtensor_shapes)
        out = self._compute_out_shape(sizes, kernel_size, stride, padding, dilation)
        first = compute_start_index(lengths, index, out)
        last = first + compute_subshape(lengths, index, out) - 1
        window = (kernel_size, stride, padding, dilation)
        left = np.maximum(0, self._compute_min_input_range(first, *window))
        right = np.minimum(sizes - 1, self._compute_max_input_range(last, *window))
        return np.stack([start - left, right - (start + local - 1)], axis=1).astype(np.int64)


def block_of(
    lengths: Array, index: Array, sizes: Array, subtensor_shapes: Array | None
) -> tuple[Array, Array]:
    """Return start and shape of the block at a position; balanced where no shapes are given."""
    if subtensor_shapes is None:
        return compute_start_index(lengths, index, sizes), compute_subshape(lengths, index, sizes)
    starts = compute_subtensor_start_indices(subtensor_shapes)
    return starts[tuple(index)], subtensor_shapes[tuple(index)]
