"""Small arrays between the workers of a partition: shapes, counts, flags."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kadril.transport.base import Op, Transport

__all__ = ["allgather", "allreduce", "broadcast", "print_in_order"]

MAX_DIMS = 16
MAX_DTYPE_CHARS = 8
OPS = {"sum": "sum", "prod": "product", "min": "min", "max": "max"}


def broadcast(transport: Transport, data: npt.ArrayLike | None, root: int) -> npt.NDArray[Any]:
    """Send the root's array to all, with its shape and dtype.

    Raises:
        ValueError: the root has no array of numbers; on all ranks.
    """
    array = np.empty(0)
    header = np.zeros(1 + MAX_DIMS + MAX_DTYPE_CHARS, dtype=np.int64)
    if transport.rank == root:
        array = np.array(data, order="C")  # a copy: transports write, and take no read-only memory
        header[:] = describe(array)
    transport.broadcast(header, root, name="broadcast_data")
    if header[0] < 0:
        raise ValueError(
            f"rank {root} must give an array of numbers with up to {MAX_DIMS} dims, and did not"
        )
    if transport.rank != root:
        shape = tuple(int(length) for length in header[1 : 1 + header[0]])
        letters = bytes(int(letter) for letter in header[1 + MAX_DIMS :] if letter)
        array = np.empty(shape, dtype=np.dtype(letters.decode()))
    if array.size:
        transport.broadcast(array.reshape(-1).view(np.uint8), root, name="broadcast_data")
    return array


def describe(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return shape and dtype of an array as numbers; the first is -1 where it cannot be sent."""
    header = np.zeros(1 + MAX_DIMS + MAX_DTYPE_CHARS, dtype=np.int64)
    letters = array.dtype.str.encode()
    if array.dtype.kind not in "biufc" or array.ndim > MAX_DIMS:
        header[0] = -1
        return header
    header[0] = array.ndim
    header[1 : 1 + array.ndim] = array.shape
    header[1 + MAX_DIMS : 1 + MAX_DIMS + len(letters)] = list(letters)
    return header


def allgather(transport: Transport, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the arrays of all ranks, flattened and concatenated."""
    mine = np.array([data.size], dtype=np.int64)
    sizes = np.empty(transport.size, dtype=np.int64)
    transport.allgatherv(mine, sizes, [1] * transport.size, name="allgather_data")
    everyones = np.empty(int(sizes.sum()), dtype=data.dtype)
    flat = np.array(data, order="C").reshape(-1)
    transport.allgatherv(flat, everyones, sizes.tolist(), name="allgather_data")
    return everyones


def allreduce(transport: Transport, data: npt.NDArray[Any], op: str) -> npt.NDArray[Any]:
    """Return an array reduced over all ranks."""
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    result = np.array(data, copy=True, order="C")
    transport.allreduce(result, cast("Op", OPS[op]), name="allreduce_data")
    return result


def print_in_order(transport: Transport, line: str) -> None:
    """Print a line on each rank, in rank order."""
    for rank in range(transport.size):
        if rank == transport.rank:
            print(line, flush=True)  # noqa: T201 - what it is for
        transport.barrier(name="print_sequential")
