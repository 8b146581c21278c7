"""Frames on a unix-domain socket, or on a TCP connection.

A frame is a length, a kind and a payload; one descriptor may travel with it on the former.

      4 bytes      1 byte    length - 1 bytes
    +------------+---------+------------------+
    | length, BE |  kind   |     payload      |   + at most one descriptor (SCM_RIGHTS)
    +------------+---------+------------------+

The length is checked against a limit before a byte of the payload is kept, so that a stranger
cannot make this process hold more than the limit. Payloads are fixed structs or JSON objects, never
pickles.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import socket
import struct
from collections import deque
from typing import NamedTuple

from kadril.world.deadline import Deadline

__all__ = [
    "MAX_BLOB",
    "MAX_STRANGER_FRAME",
    "Connection",
    "Frame",
    "FrameReader",
    "Kind",
    "PeerClosedError",
    "WireError",
    "encode",
]

LENGTH = struct.Struct("!I")
DESCRIPTOR = struct.Struct("=i")

MAX_STRANGER_FRAME = 1024  # a handshake needs less than 200 bytes
MAX_BLOB = 1 << 20  # what one rank may give to one exchange
MAX_FRAME = MAX_BLOB + 64
RECEIVE_BYTES = 64 * 1024


# A connection between hosts also ends when its link does.
GONE = {
    errno.EPIPE,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}


class Kind(enum.IntEnum):
    """Kind of a frame's message."""

    CHALLENGE = 1  # rank 0 -> peer: its nonce
    CLAIM = 2  # peer -> rank 0: who I am, with a proof
    WELCOME = 3  # rank 0 -> peer: taken, with a proof; wait for the others
    REFUSED = 4  # rank 0 -> peer: not taken and why, with a proof
    START = 5  # rank 0 -> peer: all ranks are here
    FAILED = 6  # rank 0 -> peer: the meeting has failed and why
    BLOB = 7  # both ways: bytes of an allgather
    READY = 8  # peer -> rank 0: waits for a broadcast descriptor
    DESCRIPTOR = 9  # both ways: a descriptor


class WireError(Exception):
    """Violation of the protocol: what came is not a frame of it."""


class PeerClosedError(Exception):
    """The other side closed the connection."""


class Frame(NamedTuple):
    """One frame; `descriptor` is owned by whoever takes the frame."""

    kind: Kind
    payload: bytes
    descriptor: int | None = None


def encode(kind: Kind, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return LENGTH.pack(len(payload) + 1) + bytes([kind]) + payload


class FrameReader:
    """Cuts a stream of bytes into frames, however the bytes were split on the way."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """Take bytes that came, and give the frames that are complete.

        Raises:
            WireError: a length of 0 or above the limit, or a kind that does not exist.
        """
        self._pending += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> tuple[Kind, bytes] | None:
        if len(self._pending) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._pending)
        if not 0 < length <= self.limit:
            raise WireError(f"a frame of {length} bytes, where 1 to {self.limit} are allowed")
        if len(self._pending) > LENGTH.size:
            check_kind(self._pending[LENGTH.size])
        end = LENGTH.size + length
        if len(self._pending) < end:
            return None
        kind = Kind(self._pending[LENGTH.size])
        payload = bytes(self._pending[LENGTH.size + 1 : end])
        del self._pending[:end]
        return kind, payload


def gone(error: OSError) -> Exception:
    """The error to raise for one of a socket: that the other side is gone, or the same."""
    return PeerClosedError() if error.errno in GONE else error


def check_kind(code: int) -> None:
    """Raise `WireError` for a kind of frame that does not exist."""
    if code not in Kind._value2member_map_:
        raise WireError(f"a frame of unknown kind {code}")


class Connection:
    """One end of an accepted or connected socket: sends and receives frames.

    It starts as a stranger's: small frames, and descriptors are dropped by the kernel. `trust()`
    lifts both limits once the other side has proved who it is.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._trusted = False
        self._reader = FrameReader(MAX_STRANGER_FRAME)
        self._frames: deque[Frame] = deque()
        self._descriptors: deque[int] = deque()

    def trust(self) -> None:
        """Accept frames of full size, and descriptors."""
        self._trusted = True
        self._reader.limit = MAX_FRAME

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.socket.fileno()

    @property
    def is_local(self) -> bool:
        """Whether the other side is a process of this host, which the kernel knows."""
        return self.socket.family == socket.AF_UNIX

    def source(self) -> str:
        """The other side as messages name it: "process 123", or its address."""
        if self.is_local:
            return f"process {self.credentials()[0]}"
        try:
            return str(self.socket.getpeername()[0])
        except OSError:  # it is gone already
            return "an unknown address"

    def credentials(self) -> tuple[int, int]:
        """Process id and user id of the other side, as the kernel saw them; on one host only."""
        raw = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _gid = struct.unpack("3i", raw)
        return pid, uid

    def send(
        self, kind: Kind, payload: bytes = b"", *, deadline: Deadline, descriptor: int | None = None
    ) -> None:
        """Send a frame.

        Raises:
            TimeoutError: the other side did not take it before the deadline.
            PeerClosedError: the other side is gone.
        """
        self.send_bytes(encode(kind, payload), deadline=deadline, descriptor=descriptor)

    def send_bytes(self, data: bytes, *, deadline: Deadline, descriptor: int | None = None) -> None:
        """Send frames that are encoded already; raises as `send`."""
        # A timeout of 0 would mean "do not wait at all", and a small frame nearly always fits at
        # once.
        self.socket.settimeout(max(deadline.remaining, 0.01))
        try:
            if descriptor is not None:
                data = data[socket.send_fds(self.socket, [data], [descriptor]) :]
            # Not with nothing left to send: a peer that has all it wants may have closed already.
            if data:
                self.socket.sendall(data)
        except OSError as error:
            raise gone(error) from error

    def receive(self, deadline: Deadline) -> Frame:
        """Wait for the next frame.

        Raises:
            TimeoutError: none came before the deadline.
            PeerClosedError: the other side is gone.
            WireError: what came is not a frame.
        """
        while not self._frames:
            if deadline.expired:
                raise TimeoutError
            self.socket.settimeout(deadline.remaining or 0.001)
            self._read()
        return self._frames.popleft()

    def poll(self) -> Frame | None:
        """The next frame if it is complete; reads once, and is called when the socket is readable.

        Raises:
            PeerClosedError: the other side is gone.
            WireError: what came is not a frame.
        """
        if not self._frames:
            self.socket.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                self._read()
        return self._frames.popleft() if self._frames else None

    @property
    def has_frame(self) -> bool:
        """Whether a complete frame has been read and not been taken yet."""
        return bool(self._frames)

    def _read(self) -> None:
        try:
            data = self._read_bytes()
        except OSError as error:
            raise gone(error) from error
        if not data:
            raise PeerClosedError
        for kind, payload in self._reader.feed(data):
            descriptor = None
            if kind is Kind.DESCRIPTOR:
                if not self._descriptors:
                    raise WireError("a descriptor was announced, and none came")
                descriptor = self._descriptors.popleft()
            self._frames.append(Frame(kind, payload, descriptor))

    def _read_bytes(self) -> bytes:
        if not self._trusted:
            return self.socket.recv(MAX_STRANGER_FRAME)
        if not self.is_local:
            return self.socket.recv(RECEIVE_BYTES)
        # Not socket.recv_fds(), which drops its flags: children would inherit the descriptor.
        data, ancillary, flags, _ = self.socket.recvmsg(
            RECEIVE_BYTES, socket.CMSG_LEN(DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(DESCRIPTOR.unpack(content[: DESCRIPTOR.size]))
        if flags & socket.MSG_CTRUNC:
            raise WireError(
                "a descriptor was lost on the way: is the limit of open files reached (ulimit -n)?"
            )
        return data

    def close(self) -> None:
        """Close the socket, and every descriptor that came and was not taken."""
        self.socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        while self._frames:
            frame = self._frames.popleft()
            if frame.descriptor is not None:
                os.close(frame.descriptor)
