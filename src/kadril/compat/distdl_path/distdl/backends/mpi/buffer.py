"""Growing buffers, viewed by shape. Layers accept a manager of them, and do not use it here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MPIBufferManager", "MPIExpandableBuffer", "checked_manager"]


class MPIExpandableBuffer:
    """A buffer that grows, and keeps its contents.

    Args:
        dtype: of its elements.
        initial_capacity: elements.

    Attributes:
        raw_buffer: the memory.
        capacity: elements of it.
    """

    def __init__(self, dtype: npt.DTypeLike, initial_capacity: int = 0) -> None:
        self.dtype = dtype
        self.raw_buffer: npt.NDArray[Any] = np.zeros(initial_capacity, dtype=dtype)

    @property
    def capacity(self) -> int:
        """Number of elements of the memory."""
        return int(self.raw_buffer.size)

    def expand(self, new_capacity: int) -> None:
        """Grow to at least `new_capacity` elements."""
        if new_capacity > self.capacity:
            old = self.raw_buffer
            self.raw_buffer = np.zeros(new_capacity, dtype=self.dtype)
            self.raw_buffer[: old.size] = old

    def allocate_view(self, view_shape: Sequence[int]) -> None:
        """Grow to hold an array of this shape."""
        self.expand(math.prod(int(length) for length in view_shape))

    def get_view(self, view_shape: Sequence[int]) -> npt.NDArray[Any]:
        """Return the first elements as an array of this shape."""
        shape = tuple(int(length) for length in view_shape)
        self.allocate_view(shape)
        return self.raw_buffer[: math.prod(shape)].reshape(shape)


class MPIBufferManager:
    """Buffers by dtype.

    Attributes:
        buffers_map: the buffers of each dtype.
    """

    def __init__(self) -> None:
        self.buffers_map: dict[Any, list[MPIExpandableBuffer]] = defaultdict(list)

    def request_buffers(
        self, num_buffers: int, dtype: npt.DTypeLike = np.float32
    ) -> list[MPIExpandableBuffer]:
        """Return the first buffers of a dtype, and make those that are missing."""
        buffers = self.buffers_map[dtype]
        while len(buffers) < num_buffers:
            buffers.append(MPIExpandableBuffer(dtype))
        return buffers[:num_buffers]


def checked_manager(manager: object) -> MPIBufferManager:
    """Return the manager that a layer was given, or a new one where that is None.

    Raises:
        ValueError: it is neither.
    """
    if manager is None:
        return MPIBufferManager()
    if type(manager) is not MPIBufferManager:
        raise ValueError(f"buffer_manager must be an MPIBufferManager, got {manager!r}")
    return manager
