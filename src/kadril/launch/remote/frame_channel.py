"""Frames between the launcher and the agent of a host, over ssh's stdin and stdout.

    +------+------+--------+---------+
    | kind | rank | length | payload |      1, 4 and 4 bytes, then as many as `length` says
    +------+------+--------+---------+

What a shell prints before the agent begins (a greeting in .bashrc) is passed over: the first frame
comes after a mark. Payloads are bytes of a rank's output, or JSON: what comes from another host is
never run.
"""

from __future__ import annotations

import enum
import json
import os
import re
import selectors
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["MARK", "Frame", "FrameChannel", "Kind"]

MARK = b"\0kadril agent\0"
HEADER = struct.Struct("!cII")
READ_BYTES = 1 << 16

FILE_BYTES = 1 << 20

# A frame is a piece of output, or the description of a job with its variables.
MAX_PAYLOAD = 64 << 20


class Kind(enum.Enum):
    """Kind of a frame's message."""

    # from the launcher
    JOB = b"J"  # what to run; the agent gets everything ready and answers READY or REFUSED
    FILE = b"L"  # a piece of a file in the job's directory, and back; "name\0" comes before it
    START = b"S"  # where ranks meet; the ranks are started
    SIGNAL = b"G"  # a signal to pass on
    STOP = b"T"  # a signal that is meant to end the ranks
    FINISH = b"F"  # all ranks of all hosts are dead: end what is left
    CREDIT = b"C"  # so many more bytes of a stream may come
    # from the agent
    HELLO = b"H"  # the host: version of kadril, cores, address
    READY = b"R"
    REFUSED = b"N"  # why the job cannot be run here
    STARTED = b"P"  # process id of a rank
    OUT = b"O"  # bytes of a rank's stdout
    ERR = b"E"
    END = b"Z"  # a stream of a rank has come to its end
    EXIT = b"X"  # how a rank ended
    NOTICE = b"M"  # a line for the user
    ALIVE = b"A"  # sent now and then, so that a dead connection is noticed
    DONE = b"D"  # nothing is left here


class Frame(NamedTuple):
    """One message."""

    kind: Kind
    rank: int
    payload: bytes

    @property
    def fields(self) -> Any:
        """The payload as plain data."""
        return json.loads(self.payload)

    def append_to(self, directory: Path) -> str:
        """Add a piece of a file to that file in a directory, and return its name.

        Raises:
            ValueError: the name would lead out of the directory, or to a hidden file.
        """
        name, _, piece = self.payload.partition(b"\0")
        text = name.decode()
        if not re.fullmatch(r"\w[\w.-]*", text):
            raise ValueError(f"{text!r} is no name of a file of a job")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(directory / text, flags, 0o600), "wb") as file:
            file.write(piece)
        return text


class FrameChannel:
    """Frames both ways over two descriptors, which it makes non-blocking and owns."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        read_end: int,
        write_end: int,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[], None],
    ) -> None:
        """Begin to read.

        Args:
            selector: of the event loop; its data are functions without arguments.
            read_end: where frames come from.
            write_end: where frames go to.
            on_frame: called with each frame.
            on_end: called once, when the other side is gone or sends what is no frame.
        """
        self.is_open = True
        self._selector = selector
        self._read_end, self._write_end = read_end, write_end
        self._on_frame, self._on_end = on_frame, on_end
        self._received = bytearray()
        self._is_marked = False  # whether the mark has come
        self._pending = bytearray()
        self._writes = False  # whether the write end is registered
        for descriptor in (read_end, write_end):
            os.set_blocking(descriptor, False)
        selector.register(read_end, selectors.EVENT_READ, self._read)

    @property
    def num_pending(self) -> int:
        """Number of bytes that wait to be sent."""
        return len(self._pending)

    def send_mark(self) -> None:
        """Say that frames follow."""
        self._pending += MARK
        self._write()

    def send(self, kind: Kind, payload: bytes = b"", rank: int = 0) -> None:
        """Send a frame; what does not go out at once goes later."""
        if self.is_open:
            self._pending += HEADER.pack(kind.value, rank, len(payload)) + payload
            if not self._writes:
                self._write()

    def send_file(self, path: Path) -> None:
        """Send a file, in pieces."""
        name = path.name.encode() + b"\0"
        with path.open("rb") as file:
            self.send(Kind.FILE, name)  # which may have nothing in it
            while piece := file.read(FILE_BYTES):
                self.send(Kind.FILE, name + piece)

    def send_fields(self, kind: Kind, fields: object, rank: int = 0) -> None:
        """Send a frame with plain data."""
        self.send(kind, json.dumps(fields).encode(), rank)

    def close(self) -> None:
        """Close both descriptors. May be called again."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._read_end)
            self._watch_writes(False)
            for descriptor in {self._read_end, self._write_end}:
                os.close(descriptor)

    def _end(self) -> None:
        if self.is_open:
            self.close()
            self._on_end()

    def _read(self) -> None:
        if not self.is_open:
            return  # closed by another event of the same turn
        try:
            data = os.read(self._read_end, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._received += data
        if not self._is_marked:
            _, mark, after = self._received.partition(MARK)
            if not mark:
                del self._received[: -len(MARK)]  # a greeting may be long
                return
            self._is_marked, self._received = True, after
        self._take_frames()

    def _take_frames(self) -> None:
        while self.is_open and len(self._received) >= HEADER.size:
            letter, rank, length = HEADER.unpack_from(self._received)
            if length > MAX_PAYLOAD or letter not in Kind._value2member_map_:
                self._end()
                return
            end = HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[HEADER.size : end])
            del self._received[:end]
            self._on_frame(Frame(Kind(letter), rank, payload))

    def _write(self) -> None:
        if not self.is_open:
            return
        try:
            while self._pending:
                written = os.write(self._write_end, self._pending[: 1 << 16])
                del self._pending[:written]
        except BlockingIOError:
            pass
        except OSError:
            # The other side is gone; what it said last may still be there to read.
            self._pending.clear()
        self._watch_writes(bool(self._pending))

    def _watch_writes(self, wanted: bool) -> None:
        if wanted and not self._writes:
            self._selector.register(self._write_end, selectors.EVENT_WRITE, self._write)
        elif not wanted and self._writes:
            self._selector.unregister(self._write_end)
        self._writes = wanted
