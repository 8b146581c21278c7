r"""The hub: a meeting of ranks for setting up, over a unix-domain socket on one host, or over TCP.

             rank 1   rank 2   rank 3
                \       |       /          each line is a connection that was proved from both
                 \      |      /           sides (see handshake.py); rank 0 serves
                      rank 0

It moves small blobs and, on one host, descriptors, a few times per world; data goes through a
transport. There is no thread; rank 0 serves while it is itself inside a call. Every call is
collective and made in the same order on all ranks; where one rank fails, all are told its reason
and the hub is closed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from kadril.errors import ClosedError, ForkedError
from kadril.world.gathering import Gathering, release_held
from kadril.world.handshake import SECRET_BYTES, Claim
from kadril.world.hub_peer import PeerSide
from kadril.world.hub_server import ServerSide
from kadril.world.joining import join
from kadril.world.place import Place, UnixPlace
from kadril.world.wire import MAX_BLOB

__all__ = ["Hub"]


class HubSide(Protocol):
    """Side of a hub that a rank has: rank 0 serves, and the others ask it.

    Attributes:
        rank: of this process within the hub.
        size: number of ranks.
        is_closed: whether it was closed, or has failed.
    """

    rank: int
    size: int
    is_closed: bool

    @property
    def sockets(self) -> list[socket.socket]:
        """See `Hub`."""
        ...

    def allgather(self, blob: bytes) -> list[bytes]:
        """See `Hub`."""
        ...

    def broadcast_fd(self, fd: int | None) -> int:
        """See `Hub`."""
        ...

    def allgather_fds(self, fd: int) -> list[int]:
        """See `Hub`."""
        ...

    def close(self) -> None:
        """See `Hub`."""
        ...


class Hub:
    """The ranks of one host, connected; a context manager.

    Attributes:
        rank: of this process within the hub.
        size: number of ranks.
    """

    def __init__(self, side: HubSide) -> None:
        self.rank = side.rank
        self.size = side.size
        self._side = side
        self._pid = os.getpid()

    @staticmethod
    def open(
        place: str | Place,
        secret: bytes,
        rank: int,
        size: int,
        *,
        job: str,
        generation: int,
        listen_socket: socket.socket | None = None,
        timeout: float,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Hub:
        """Meet the other ranks at a place; returns when all have come.

        Args:
            place: path of a unix-domain socket, whose directory should be closed to other users;
                or another place.
            secret: 32 bytes that every rank of the job knows and nobody else.
            rank: of this process within the hub.
            size: number of ranks.
            job: name of the job; not secret.
            generation: number of this meeting within the job, the same on all ranks. A rank that is
                ahead is held until rank 0 gets there; one that is behind is refused.
            listen_socket: rank 0 only: the socket that listens there already. It stays open, and is
                for the next generation too. Where it is None rank 0 listens itself, and stops as
                soon as all ranks have come.
            timeout: seconds to wait for the others, here and in each later call.
            is_cancelled: asked while this waits for the others here: whether one of them is known
                not to come any more.

        Raises:
            RendezvousError: a rank did not come, left, or does not fit; all ranks get the same
                reason.
            ValueError: rank, size or secret make no sense.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank must be from 0 to size - 1 = {size - 1}, got {rank}")
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
        place = UnixPlace(place) if isinstance(place, str) else place
        mine = Claim(rank=rank, size=size, job=job, generation=generation)
        if size == 1:
            return Hub(ServerSide({}, timeout))
        if rank > 0:
            connection = join(place, secret, mine, timeout, is_cancelled)
            return Hub(PeerSide(connection, rank, size, timeout))
        if listen_socket is not None:
            gathering = Gathering(listen_socket, secret, mine, timeout, is_cancelled)
            return Hub(ServerSide(gathering.run(), timeout))
        listener = place.listen()
        try:
            gathering = Gathering(listener, secret, mine, timeout, is_cancelled)
            return Hub(ServerSide(gathering.run(), timeout))
        finally:
            release_held(listener)
            place.remove()
            listener.close()

    def allgather(self, blob: bytes) -> list[bytes]:
        """Give a blob of at most 1 MiB; get those of all ranks, in rank order.

        Raises:
            RendezvousError: a rank left, is late, or made another call.
            ClosedError: the hub was closed, or has failed before.
            ForkedError: called in a child made by fork.
        """
        self._check("allgather")
        if len(blob) > MAX_BLOB:
            raise ValueError(f"a blob may have {MAX_BLOB} bytes, got {len(blob)}")
        return self._side.allgather(bytes(blob))

    def broadcast_fd(self, fd: int | None) -> int:
        """Hand rank 0's descriptor to all ranks.

        Args:
            fd: rank 0's descriptor, which stays its own; None on other ranks.

        Returns:
            A descriptor for the same open file, owned by the caller (on rank 0: a duplicate).

        Raises:
            RendezvousError, ClosedError, ForkedError: as `allgather`.
        """
        self._check("broadcast_fd")
        if (fd is None) != (self.rank > 0):
            raise ValueError("rank 0, and only rank 0, gives the descriptor")
        return self._side.broadcast_fd(fd)

    def allgather_fds(self, fd: int) -> list[int]:
        """Hand each rank's descriptor to all ranks.

        Returns:
            A descriptor for each rank, in rank order, all owned by the caller, its own duplicated.

        Raises:
            RendezvousError, ClosedError, ForkedError: as `allgather`.
        """
        self._check("allgather_fds")
        return self._side.allgather_fds(fd)

    def close(self) -> None:
        """Close the connections; local, and may be called again."""
        self._side.close()

    def _check(self, operation: str) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{operation} on a hub that belongs to process {self._pid}; this is its child"
                f" {os.getpid()}. A forked child is not a rank"
            )
        if self._side.is_closed:
            raise ClosedError(f"{operation} on a hub that is closed, or has failed before")

    @property
    def sockets(self) -> list[socket.socket]:
        """Connections of this rank to the others."""
        return self._side.sockets

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Hub(rank={self.rank}, size={self.size})"
