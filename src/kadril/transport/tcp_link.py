"""One TCP connection between two ranks of a group: frames out of and into their memory.

      1 byte   3 bytes   4 bytes         length bytes
    +--------+---------+----------+------------------------+
    |  kind  |    0    |  length  |        payload         |
    +--------+---------+----------+------------------------+

Messages go in the order in which they were given, cut into frames of 1 MiB, so that the last word
of a rank that leaves never waits behind more than that. A payload is sent from the memory of its
tensor and received into it: nothing is copied but what came along with a header.

    MEETING, PACKET   data, matched with what the other side expects next
    NOTE              why the sender leaves (`ending.py`); the last frame

A peer that is ahead sends what is not expected yet: that is left where it is until it is.

Whether the other side is there is for the kernels to find out, so a rank that computes, or is
stopped, is never taken for dead: its kernel answers in its place. An idle connection is probed by
the kernel (`keepalive.py`). On one with bytes under way, `TCP_INFO` tells for how long nothing was
acknowledged. (`TCP_USER_TIMEOUT` would not do: it also ends a connection to a rank that does not
read for long.)
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from enum import IntEnum

from kadril.transport.ending import MAX_BYTES, Ending
from kadril.transport.send_window import SendWindow
from kadril.transport.slicing import chunks_of
from kadril.transport.tcp_info import read_tcp_info

__all__ = ["FrameError", "FrameKind", "TcpLink", "Transfer"]

HEADER = struct.Struct("<B3xI")
MAX_FRAME = 1 << 20
BUFFER_BYTES = 32 << 10
MAX_VIEWS = 16  # of one system call
READ_BYTES = 4 << 20  # of one link, before others have their turn


class FrameKind(IntEnum):
    """Kind of a frame's content."""

    MEETING = 1
    PACKET = 2
    NOTE = 3


class FrameError(Exception):
    """Violation of the protocol: something came that it does not have at this place."""


class Transfer:
    """Messages of one meeting or exchange: how many bytes are still to come or to go.

    Attributes:
        num_left: messages that are not through.
        total: bytes of all of them.
        moved: bytes that went through a connection.
        peers: whose messages are not through, by number of messages.
        targets: peers that are sent something.
    """

    def __init__(self) -> None:
        self.num_left = 0
        self.total = 0
        self.moved = 0
        self.peers: dict[int, int] = {}
        self.targets: tuple[int, ...] = ()

    def add(self, peer: int, num_bytes: int) -> None:
        """Count one message more."""
        self.num_left += 1
        self.total += num_bytes
        self.peers[peer] = self.peers.get(peer, 0) + 1

    def finish(self, peer: int) -> None:
        """One message is through."""
        self.num_left -= 1
        self.peers[peer] -= 1


class Message:
    """One message under way in one direction."""

    __slots__ = ("kind", "left", "memory", "transfer")

    def __init__(self, kind: int, memory: memoryview, transfer: Transfer | None) -> None:
        self.kind = kind
        self.memory = memory
        self.left = len(memory)
        self.transfer = transfer


class TcpLink:
    """This rank's end of the connection to one peer. Its socket never blocks.

    Attributes:
        peer: rank of the other side, within the group.
        ending: why the other side has left, if it said so.
        is_ended: whether nothing more will come.
        loss: what the kernel says about a connection that is down; empty otherwise.
    """

    def __init__(self, sock: socket.socket, peer: int) -> None:
        self.socket = sock
        self.peer = peer
        self.ending: Ending | None = None
        self.is_ended = False
        self.loss = ""
        self._outgoing: deque[tuple[memoryview, Message | None]] = deque()  # pieces of frames
        self._incoming: deque[Message] = deque()  # messages that are expected
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._end = 0  # what of the buffer is not used yet
        self._frame: tuple[int, int] | None = None  # of the frame that comes in: kind, bytes left
        self._note = bytearray()
        self._is_sending = False  # and what was sent is not counted yet
        self._num_silent = 0
        self._window = SendWindow(sock)
        sock.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.socket.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing) and not self.loss

    @property
    def wants_to_read(self) -> bool:
        """Whether what comes can be taken: not if the peer is ahead, or has ended."""
        if self.is_ended:
            return False
        return self._frame is None or self._frame[0] == FrameKind.NOTE or bool(self._incoming)

    # Sending.

    def send(self, kind: FrameKind, memory: memoryview, transfer: Transfer | None = None) -> None:
        """Have a message sent, after all others; the memory must not change until it is."""
        message = Message(kind, memory, transfer)
        for begin, end in chunks_of(len(memory), MAX_FRAME):
            self._outgoing.append((memoryview(HEADER.pack(kind, end - begin)), None))
            self._outgoing.append((memory[begin:end], message))
        if transfer is not None:
            transfer.add(self.peer, len(memory))

    def push(self) -> None:
        """Send as much as the kernel takes."""
        while self.wants_to_send:
            views = [
                self._outgoing[place][0] for place in range(min(len(self._outgoing), MAX_VIEWS))
            ]
            self._is_sending = True
            try:
                num_sent = self.socket.sendmsg(views)
            except BlockingIOError:
                self._is_sending = False
                return
            except OSError as error:
                self._is_sending = False
                self._outgoing.clear()
                with contextlib.suppress(FrameError):
                    self.pull()  # what came before may say why
                if not self.is_ended:
                    self._lose(error.strerror or type(error).__name__)
                return
            self._advance(num_sent)
            self._is_sending = False

    def _advance(self, num_sent: int) -> None:
        """Forget what was sent."""
        while num_sent:
            view, message = self._outgoing.popleft()
            part = min(num_sent, len(view))
            num_sent -= part
            if part < len(view):
                self._outgoing.appendleft((view[part:], message))
            if message is not None:
                self._count(message, part)

    def _count(self, message: Message, num_bytes: int) -> None:
        message.left -= num_bytes
        if message.transfer is not None:
            message.transfer.moved += num_bytes
            if message.left == 0:
                message.transfer.finish(self.peer)

    def say_last(self, ending: Ending) -> None:
        """Replace what was not sent by a last word: only a frame that was begun is completed.

        After an interrupt in the middle of sending nobody knows how far that came, so there is no
        last word: the connection ends, as that of a rank that died.
        """
        if self._is_sending:
            self._outgoing.clear()
            self.end_sending()
            return
        rest: list[memoryview] = []
        if self._outgoing:
            first, message = self._outgoing[0]
            if message is not None:
                rest = [memoryview(bytes(len(first)))]  # its memory is the caller's again
            elif len(first) < HEADER.size:
                rest = [first, memoryview(bytes(len(self._outgoing[1][0])))]
        note = ending.encode()
        rest.append(memoryview(HEADER.pack(FrameKind.NOTE, len(note)) + note))
        self._outgoing = deque((view, None) for view in rest)
        self.push()
        self.end_sending()

    def adapt_window(self, num_sharing: int) -> None:
        """Have as much under way from now on as the link carries; see `send_window.py`."""
        if not self.is_ended:
            self._window.adapt(num_sharing)

    def end_sending(self) -> None:
        """Tell the other side that this was all, if all is sent."""
        if not self._outgoing:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    # Receiving.

    def expect(self, kind: FrameKind, memory: memoryview, transfer: Transfer) -> None:
        """Have the next message of the peer that nobody expects yet received into memory."""
        self._incoming.append(Message(kind, memory, transfer))
        transfer.add(self.peer, len(memory))

    def pull(self) -> None:
        """Take what has come, as far as it is expected.

        Raises:
            FrameError: it is not what was expected.
        """
        num_read = 0
        while num_read < READ_BYTES and self._use_buffer():
            try:
                num_read += self._read()
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(error.strerror or type(error).__name__)
                return
            if self.is_ended:
                return

    def _use_buffer(self) -> bool:
        """Take what is in the buffer; returns whether more may be read from the socket."""
        while True:
            if self._frame is None:
                if self._end - self._begin < HEADER.size:
                    return not self.is_ended
                self._begin_frame(*HEADER.unpack_from(self._buffer, self._begin))
                self._begin += HEADER.size
            if not self._has_room():
                return False
            part = min(self._end - self._begin, self._frame_left())
            if part == 0:
                return True
            source = self._buffer[self._begin : self._begin + part]
            self._begin += part
            self._take(part, source)

    def _begin_frame(self, kind: int, length: int) -> None:
        limit = MAX_BYTES if kind == FrameKind.NOTE else MAX_FRAME
        if kind not in FrameKind._value2member_map_ or not 0 < length <= limit:
            raise FrameError(f"a frame of kind {kind} and {length} bytes")
        self._frame = (kind, length)

    def _has_room(self) -> bool:
        """Whether the frame that comes in is expected.

        Raises:
            FrameError: another one is.
        """
        assert self._frame is not None  # noqa: S101
        kind, left = self._frame
        if kind == FrameKind.NOTE:
            return True
        if not self._incoming:
            return False
        message = self._incoming[0]
        if message.kind != kind or left > message.left:
            raise FrameError(
                f"{left} bytes of kind {kind} where {message.left} of kind {message.kind} were due"
            )
        return True

    def _frame_left(self) -> int:
        assert self._frame is not None  # noqa: S101
        return self._frame[1]

    def _target(self) -> memoryview:
        """Return the memory that the next bytes of the frame go to."""
        message = self._incoming[0]
        done = len(message.memory) - message.left
        return message.memory[done : done + self._frame_left()]

    def _take(self, num_bytes: int, source: memoryview | None) -> None:
        """Count bytes of the frame; those that are not in their place yet are copied."""
        assert self._frame is not None  # noqa: S101
        kind, left = self._frame
        if kind == FrameKind.NOTE:
            assert source is not None  # noqa: S101
            self._note += source
        else:
            message = self._incoming[0]
            if source is not None:
                self._target()[:num_bytes] = source
            self._count(message, num_bytes)
            if message.left == 0:
                self._incoming.popleft()
        self._frame = (kind, left - num_bytes) if left > num_bytes else None
        if kind == FrameKind.NOTE and self._frame is None:
            self.ending = Ending.decode(bytes(self._note))
            self.is_ended = True

    def _read(self) -> int:
        """Read once: into the memory of a message, or into the buffer, which is empty or nearly."""
        if self._frame is not None and self._frame[0] != FrameKind.NOTE:
            num_read = self.socket.recv_into(self._target())
            if num_read:
                self._take(num_read, None)
        else:
            rest = bytes(self._buffer[self._begin : self._end])
            self._buffer[: len(rest)] = rest
            num_read = self.socket.recv_into(self._buffer[len(rest) :])
            self._begin, self._end = 0, len(rest) + num_read
        if num_read == 0:
            self._lose("closed by the other side")
        return num_read

    # Liveness.

    def _lose(self, loss: str) -> None:
        self.is_ended = True
        self.loss = loss

    def check_alive(self, timeout: float) -> None:
        """Call it now and then: lost, if the other host has acknowledged nothing for too long."""
        if self.is_ended:
            return
        info = read_tcp_info(self.socket)
        if info is None:
            return
        is_silent = bool(info.num_unacked or info.num_probes) and info.last_ack > timeout
        # A question that was asked a moment ago may just not be answered yet: look twice.
        self._num_silent = self._num_silent + 1 if is_silent else 0
        if self._num_silent > 1:
            self._lose(f"its host has acknowledged nothing for {info.last_ack:.0f} s")

    # The end.

    def drain(self) -> None:
        """Drop what has come: closing a socket that has unread bytes drops what it has sent."""
        with contextlib.suppress(OSError):
            while self.socket.recv_into(self._buffer):
                pass

    def close(self) -> None:
        """Let go of the connection."""
        self.drain()
        self.socket.close()
        self._outgoing.clear()
        self._incoming.clear()
