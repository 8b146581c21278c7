"""Rank 0's side of a hub: hears one frame from every peer, then answers them all."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Mapping

from kadril.errors import RendezvousError, name_ranks
from kadril.world.deadline import Deadline
from kadril.world.wire import Connection, Frame, Kind, PeerClosedError, WireError, encode

__all__ = ["ServerSide"]

TELL_SECONDS = 1.0


class ServerSide:
    """The side of rank 0; see `HubSide`."""

    def __init__(self, connections: Mapping[int, Connection], timeout: float) -> None:
        self.rank = 0
        self.size = len(connections) + 1
        self.is_closed = False
        self._timeout = timeout
        self._connections = {rank: connections[rank] for rank in sorted(connections)}

    @property
    def sockets(self) -> list[socket.socket]:
        """One to each other rank."""
        return [connection.socket for connection in self._connections.values()]

    def allgather(self, blob: bytes) -> list[bytes]:
        """See `Hub`."""
        frames = self._collect(Kind.BLOB)
        blobs = [blob, *(frame.payload for frame in frames.values())]
        self._send_all(b"".join(encode(Kind.BLOB, each) for each in blobs))
        return blobs

    def broadcast_fd(self, fd: int | None) -> int:
        """See `Hub`."""
        assert fd is not None  # noqa: S101 - checked by the hub
        self._collect(Kind.READY)
        self._send_all(encode(Kind.DESCRIPTOR), descriptor=fd)
        return os.dup(fd)

    def allgather_fds(self, fd: int) -> list[int]:
        """See `Hub`."""
        frames = self._collect(Kind.DESCRIPTOR)
        descriptors = [os.dup(fd)]
        descriptors += [
            frame.descriptor for frame in frames.values() if frame.descriptor is not None
        ]
        try:
            for each in descriptors:
                self._send_all(encode(Kind.DESCRIPTOR), descriptor=each)
        except BaseException:
            for each in descriptors:
                os.close(each)
            raise
        return descriptors

    def _collect(self, kind: Kind) -> dict[int, Frame]:
        """One frame of a kind from every peer, by rank."""
        deadline = Deadline(self._timeout)
        frames: dict[int, Frame] = {}
        try:
            with selectors.DefaultSelector() as selector:
                for rank, connection in self._connections.items():
                    selector.register(connection, selectors.EVENT_READ, rank)
                # What was read already is no longer announced by the selector.
                ready = [rank for rank, each in self._connections.items() if each.has_frame]
                while len(frames) < self.size - 1:
                    for rank in ready:
                        frame = self._take(rank, kind)
                        if frame is not None:
                            frames[rank] = frame
                            selector.unregister(self._connections[rank])
                    ready = self._wait(selector, deadline) if len(frames) < self.size - 1 else []
        except TimeoutError:
            self._discard(frames)
            late = [rank for rank in self._connections if rank not in frames]
            raise self._failure(
                f"{name_ranks(late)} did not take part in {kind.name} within {self._timeout:g} s."
                " Its process may be stopped, or busy in something else than kadril.init()"
            ) from None
        except BaseException:
            self._discard(frames)
            self.close()
            raise
        return {rank: frames[rank] for rank in self._connections}

    @staticmethod
    def _wait(selector: selectors.BaseSelector, deadline: Deadline) -> list[int]:
        """Ranks whose connection has something to read."""
        if deadline.expired:
            raise TimeoutError
        return [key.data for key, _events in selector.select(deadline.remaining)]

    def _take(self, rank: int, kind: Kind) -> Frame | None:
        try:
            frame = self._connections[rank].poll()
        except PeerClosedError:
            raise self._failure(
                f"rank {rank} left or died during the set-up ({kind.name}). Its own output says why"
            ) from None
        except WireError as error:
            raise self._failure(f"rank {rank} broke the protocol: {error}") from error
        if frame is None or frame.kind is kind:
            return frame
        self._discard({rank: frame})
        raise self._failure(
            f"rank 0 waits for {kind.name}, and rank {rank} sent {frame.kind.name}:"
            " all ranks have to make the same calls in the same order"
        )

    def _send_all(self, data: bytes, descriptor: int | None = None) -> None:
        deadline = Deadline(self._timeout)
        for rank, connection in self._connections.items():
            try:
                connection.send_bytes(data, deadline=deadline, descriptor=descriptor)
            except (PeerClosedError, TimeoutError) as error:
                reason = "does not read" if isinstance(error, TimeoutError) else "left or died"
                raise self._failure(
                    f"rank {rank} {reason} during the set-up. Its own output says why"
                ) from error

    def _failure(self, text: str) -> RendezvousError:
        """Tell every peer, close, and give the error to raise here."""
        for connection in self._connections.values():
            with contextlib.suppress(PeerClosedError, TimeoutError, OSError):
                connection.send(Kind.FAILED, text.encode(), deadline=Deadline(TELL_SECONDS))
        self.close()
        return RendezvousError(f"rank 0: {text}")

    def close(self) -> None:
        """See `Hub`."""
        if self.is_closed:
            return
        self.is_closed = True
        for connection in self._connections.values():
            connection.close()

    @staticmethod
    def _discard(frames: Mapping[int, Frame]) -> None:
        for frame in frames.values():
            if frame.descriptor is not None:
                os.close(frame.descriptor)
