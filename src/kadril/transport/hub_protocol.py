"""Hub, by which ranks of one host set a transport up; `kadril.world.hub.Hub` is one.

Written as a protocol, since a transport lies below the world and does not import it.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Hub"]


class Hub(Protocol):
    """Moves small blobs and descriptors between ranks that set something up together."""

    rank: int
    size: int

    def allgather(self, blob: bytes) -> list[bytes]:
        """The blobs of all ranks, in rank order."""
        ...

    def broadcast_fd(self, fd: int | None) -> int:
        """Rank 0's descriptor, duplicated for every rank."""
        ...

    def allgather_fds(self, fd: int) -> list[int]:
        """The descriptors of all ranks, in rank order, duplicated for this one."""
        ...
