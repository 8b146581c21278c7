"""The side of a hub that every rank but 0 has: tells rank 0, then hears its answer."""

from __future__ import annotations

import os
import socket

from kadril.errors import RendezvousError
from kadril.world.deadline import Deadline
from kadril.world.wire import Connection, Frame, Kind, PeerClosedError, WireError

__all__ = ["PeerSide"]

# Rank 0 names a late rank when its own time is up; its word must still find this rank waiting.
SLACK_SECONDS = 5.0


class PeerSide:
    """The side of a rank other than 0; see `HubSide`."""

    def __init__(self, connection: Connection, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.is_closed = False
        self._timeout = timeout
        self._connection = connection

    @property
    def sockets(self) -> list[socket.socket]:
        """The one to rank 0."""
        return [self._connection.socket]

    def allgather(self, blob: bytes) -> list[bytes]:
        """See `Hub`."""
        frames = self._exchange(Kind.BLOB, blob, Kind.BLOB, self.size)
        return [frame.payload for frame in frames]

    def broadcast_fd(self, fd: int | None) -> int:
        """See `Hub`."""
        (descriptor,) = self._descriptors(self._exchange(Kind.READY, b"", Kind.DESCRIPTOR, 1))
        return descriptor

    def allgather_fds(self, fd: int) -> list[int]:
        """See `Hub`."""
        frames = self._exchange(Kind.DESCRIPTOR, b"", Kind.DESCRIPTOR, self.size, descriptor=fd)
        return self._descriptors(frames)

    @staticmethod
    def _descriptors(frames: list[Frame]) -> list[int]:
        return [frame.descriptor for frame in frames if frame.descriptor is not None]

    def _exchange(
        self,
        send_kind: Kind,
        payload: bytes,
        receive_kind: Kind,
        num_frames: int,
        descriptor: int | None = None,
    ) -> list[Frame]:
        """Send a frame to rank 0, then hear its answer of `num_frames` frames."""
        deadline = Deadline(self._timeout + SLACK_SECONDS)
        frames: list[Frame] = []
        try:
            self._connection.send(send_kind, payload, deadline=deadline, descriptor=descriptor)
            while len(frames) < num_frames:
                frames.append(self._receive(receive_kind, deadline))
        except BaseException as error:
            for each in self._descriptors(frames):
                os.close(each)
            # A reason that rank 0 sent before it closed says more than "closed".
            reason = self._last_word() if isinstance(error, PeerClosedError) else ""
            self.close()
            text = reason or self._explain(error, receive_kind)
            if not text:
                raise
            raise RendezvousError(f"rank {self.rank}: {text}") from error
        return frames

    def _receive(self, kind: Kind, deadline: Deadline) -> Frame:
        frame = self._connection.receive(deadline)
        if frame.kind is Kind.FAILED:
            raise RendezvousError(f"rank {self.rank}: {frame.payload.decode()}")
        if frame.kind is not kind:
            if frame.descriptor is not None:
                os.close(frame.descriptor)
            raise WireError(f"it sent {frame.kind.name} where {kind.name} was due")
        return frame

    def _last_word(self) -> str:
        try:
            frame = self._connection.poll()
        except (PeerClosedError, WireError, OSError):
            return ""
        return frame.payload.decode() if frame and frame.kind is Kind.FAILED else ""

    def _explain(self, error: BaseException, kind: Kind) -> str:
        """Explain an error of the connection; nothing for any other, which is raised as it is."""
        if isinstance(error, PeerClosedError):
            return f"rank 0 left or died during the set-up ({kind.name}). Its own output says why"
        if isinstance(error, TimeoutError):
            return (
                f"rank 0 did not answer ({kind.name}) within {self._timeout + SLACK_SECONDS:g} s."
                " Its process may be stopped"
            )
        if isinstance(error, WireError):
            return f"rank 0 broke the protocol: {error}"
        return ""

    def close(self) -> None:
        """See `Hub`."""
        if not self.is_closed:
            self.is_closed = True
            self._connection.close()
