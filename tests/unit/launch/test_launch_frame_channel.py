"""Frames between launcher and agent: whole, in order, however the bytes come; garbage ends it."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator

import pytest

from kadril.launch.remote.frame_channel import HEADER, MARK, Frame, FrameChannel, Kind


class Side:
    """One channel, with what it has received and the far ends of its pipes."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.frames: list[Frame] = []
        self.num_ends = 0
        read_end, self.far_write = os.pipe()
        self.far_read, write_end = os.pipe()
        self.channel = FrameChannel(
            self.selector, read_end, write_end, self.frames.append, self.note_end
        )

    def note_end(self) -> None:
        self.num_ends += 1

    def turn(self) -> None:
        for key, _ in self.selector.select(0):
            key.data()

    def give(self, data: bytes) -> None:
        os.write(self.far_write, data)
        self.turn()

    def close(self) -> None:
        self.channel.close()
        self.selector.close()
        for descriptor in (self.far_read, self.far_write):
            if descriptor >= 0:
                os.close(descriptor)


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.close()


def packed(kind: Kind, payload: bytes, rank: int = 0) -> bytes:
    return HEADER.pack(kind.value, rank, len(payload)) + payload


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_frames_come_in_pieces_after_a_greeting(side: Side, size: int) -> None:
    text = b"Welcome to host1\n" + MARK[:3] + MARK
    text += packed(Kind.OUT, b"\0\xffbytes", 3) + packed(Kind.EXIT, b'{"status": 7}', 2)
    for start in range(0, len(text), size):
        side.give(text[start : start + size])
    assert side.frames == [
        Frame(Kind.OUT, 3, b"\0\xffbytes"),
        Frame(Kind.EXIT, 2, b'{"status": 7}'),
    ]
    assert side.frames[1].fields == {"status": 7}
    assert side.channel.is_open


@pytest.mark.parametrize(
    "garbage", [b"?" * HEADER.size, HEADER.pack(Kind.OUT.value, 0, (64 << 20) + 1)]
)
def test_what_is_no_frame_ends_the_channel(side: Side, garbage: bytes) -> None:
    side.give(MARK + packed(Kind.READY, b"1") + garbage)
    assert side.frames == [Frame(Kind.READY, 0, b"1")]
    assert (side.channel.is_open, side.num_ends) == (False, 1)


def test_a_long_greeting_is_not_kept(side: Side) -> None:
    for _ in range(20):
        side.give(b"x" * 60_000)
    side.give(MARK + packed(Kind.READY, b""))
    assert side.frames == [Frame(Kind.READY, 0, b"")]


def test_the_end_of_the_other_side_is_told_once(side: Side) -> None:
    os.close(side.far_write)
    side.far_write = -1
    side.turn()
    assert (side.channel.is_open, side.num_ends) == (False, 1)
    side.channel.send(Kind.ALIVE)  # to nobody
    side.channel.close()
    assert side.num_ends == 1


def test_what_does_not_fit_goes_later(side: Side) -> None:
    payload = bytes(range(256)) * 2000  # half a million bytes; a pipe holds 64 Ki
    side.channel.send_mark()
    side.channel.send(Kind.OUT, payload, 1)
    side.channel.send(Kind.ALIVE)
    assert side.channel.num_pending > 0
    received = b""
    while side.channel.num_pending:
        received += os.read(side.far_read, 1 << 16)
        side.turn()
    received += os.read(side.far_read, 1 << 16)
    assert received == MARK + packed(Kind.OUT, payload, 1) + packed(Kind.ALIVE, b"")


def test_a_reader_that_left_is_no_error(side: Side) -> None:
    os.close(side.far_read)
    side.far_read = -1
    side.channel.send(Kind.ALIVE)
    assert side.channel.num_pending == 0
    side.give(MARK + packed(Kind.READY, b""))  # its last word is still heard
    assert side.frames == [Frame(Kind.READY, 0, b"")]
