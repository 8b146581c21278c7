"""Arrays as mpi4py's methods take them: numpy arrays and torch tensors, or IN_PLACE."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from kadril.transport.buffer import is_tensor

__all__ = ["IN_PLACE", "as_array", "contiguous", "empty_like", "is_in_place", "shaped"]


class InPlace:
    """The marker for a receive buffer that holds the data to send, too."""

    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE = InPlace()


def is_in_place(buffer: object) -> bool:
    """Whether a buffer is IN_PLACE, this one or mpi4py's."""
    mpi = sys.modules.get("mpi4py.MPI")
    return isinstance(buffer, InPlace) or (mpi is not None and buffer is mpi.IN_PLACE)


def as_array(buffer: Any) -> Any:
    """Return the array of a buffer, which may be given as [array, datatype]."""
    array = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    if is_tensor(array):
        return array.detach()
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"expected a numpy array or a torch tensor, got {type(array).__name__}; the"
            " lower-case methods take other objects"
        )
    return array


def contiguous(array: Any) -> Any:
    """Return an array in memory that transports take: contiguous and writable."""
    if is_tensor(array):
        return array.contiguous()
    return np.require(array, requirements=["C", "W"])


def shaped(out: Any, like: Any) -> Any:
    """Return a view of an array with the shape of another of as many elements."""
    view = out.reshape(like.shape)
    if isinstance(out, np.ndarray) and not np.shares_memory(view, out):
        raise ValueError(f"the array of shape {out.shape} to receive into is not contiguous")
    return view


def empty_like(array: Any, count: int) -> Any:
    """Return a new array of `count` elements of the same dtype."""
    if is_tensor(array):
        return array.new_empty(count)
    result: npt.NDArray[Any] = np.empty(count, dtype=array.dtype)
    return result
