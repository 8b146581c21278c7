"""A few bytes of each rank, on every rank: shapes, flags, numbers that ranks have to agree on."""

from __future__ import annotations

import numpy as np

from kadril.transport.base import Transport
from kadril.transport.shm import ShmTransport

__all__ = ["allgather_bytes"]


def allgather_bytes(transport: Transport, data: bytes, name: str) -> list[bytes]:
    """What each rank gave; all give as many bytes.

    Raises:
        MismatchError: they gave different numbers of bytes.
    """
    if transport.size == 1:
        return [data]
    if isinstance(transport, ShmTransport):
        return transport.allgather_bytes(data, name=name)
    rows = np.empty((transport.size, len(data)), dtype=np.uint8)
    mine = np.frombuffer(bytearray(data), dtype=np.uint8)  # arrays that are sent are writable
    transport.allgatherv(mine, rows, [len(data)] * transport.size, name=name)
    return [row.tobytes() for row in rows]
