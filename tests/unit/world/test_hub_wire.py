"""Frames: any split of the stream gives the same frames, and no stream of bytes does harm."""

from __future__ import annotations

import itertools
import os
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_place import num_descriptors
from hypothesis import given
from hypothesis import strategies as st

from kadril.world.deadline import Deadline
from kadril.world.wire import (
    MAX_STRANGER_FRAME,
    Connection,
    FrameReader,
    Kind,
    PeerClosedError,
    WireError,
    encode,
)

frames = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=200)), max_size=8)


@given(frames=frames, cuts=st.lists(st.integers(min_value=0, max_value=2000)))
def test_frames_survive_any_split(frames: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode(kind, payload) for kind, payload in frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader(MAX_STRANGER_FRAME)
    got = []
    for start, end in itertools.pairwise(edges):
        got += reader.feed(stream[start:end])
    assert got == frames


@given(chunks=st.lists(st.binary(max_size=2000), max_size=20))
def test_any_bytes_give_frames_or_an_error(chunks: list[bytes]) -> None:
    reader = FrameReader(MAX_STRANGER_FRAME)
    try:
        for chunk in chunks:
            for kind, payload in reader.feed(chunk):
                assert kind in Kind
                assert len(payload) < MAX_STRANGER_FRAME
    except WireError:
        pass


def test_a_length_above_the_limit_is_refused_before_its_bytes_come() -> None:
    reader = FrameReader(100)
    assert reader.feed(encode(Kind.BLOB, bytes(99))) == [(Kind.BLOB, bytes(99))]
    with pytest.raises(WireError, match="a frame of 101 bytes, where 1 to 100 are allowed"):
        reader.feed(encode(Kind.BLOB, bytes(100))[:4])


def test_an_unknown_kind_is_refused_before_its_payload_comes() -> None:
    with pytest.raises(WireError, match="unknown kind 77"):
        FrameReader(100).feed(b"\0\0\0\x50\x4d")


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    first, second = (Connection(sock) for sock in socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_descriptors_keep_their_order_among_frames(ends: tuple[Connection, Connection]) -> None:
    first, second = ends
    second.trust()
    files = [os.memfd_create(f"file {number}") for number in range(5)]
    for number, file in enumerate(files):
        os.write(file, b"%d" % number)
        first.send(Kind.BLOB, bytes(100), deadline=Deadline(5))
        first.send(Kind.DESCRIPTOR, b"%d" % number, deadline=Deadline(5), descriptor=file)
    for number in range(5):
        assert second.receive(Deadline(5)) == (Kind.BLOB, bytes(100), None)
        frame = second.receive(Deadline(5))
        assert frame.payload == b"%d" % number
        assert frame.descriptor is not None
        assert os.pread(frame.descriptor, 9, 0) == b"%d" % number
        os.close(frame.descriptor)
    for file in files:
        os.close(file)


def test_descriptors_that_nobody_took_are_closed(ends: tuple[Connection, Connection]) -> None:
    first, second = ends
    second.trust()
    with Path("/dev/null").open() as file:
        before = num_descriptors()
        first.send(Kind.BLOB, deadline=Deadline(5))
        first.send(Kind.DESCRIPTOR, deadline=Deadline(5), descriptor=file.fileno())
        assert second.receive(Deadline(5)).kind is Kind.BLOB
        assert second.has_frame
        assert num_descriptors() == before + 1, "the descriptor came along with the blob"
        second.close()
        assert num_descriptors() == before - 1, "it is gone, and so is this end"


def test_a_descriptor_that_was_announced_and_did_not_come(
    ends: tuple[Connection, Connection],
) -> None:
    first, second = ends
    second.trust()
    first.send(Kind.DESCRIPTOR, deadline=Deadline(5))
    with pytest.raises(WireError, match="none came"):
        second.receive(Deadline(5))


def test_an_end_that_closed(ends: tuple[Connection, Connection]) -> None:
    first, second = ends
    first.send(Kind.READY, deadline=Deadline(5))
    first.close()
    assert second.receive(Deadline(5)).kind is Kind.READY, "what was sent before still comes"
    with pytest.raises(PeerClosedError):
        second.receive(Deadline(5))
    with pytest.raises(PeerClosedError):
        second.send(Kind.READY, deadline=Deadline(5))


def test_an_end_that_is_silent_or_deaf(ends: tuple[Connection, Connection]) -> None:
    first, second = ends
    with pytest.raises(TimeoutError):
        second.receive(Deadline(0.01))
    assert second.poll() is None
    with pytest.raises(TimeoutError):  # more than the socket holds
        first.send(Kind.BLOB, bytes(100 << 20), deadline=Deadline(0.05))


def test_a_stranger_cannot_make_us_hold_memory(ends: tuple[Connection, Connection]) -> None:
    first, second = ends
    first.socket.setblocking(False)
    tracemalloc.start()
    try:
        for _ in range(1000):
            try:
                first.socket.send(b"\0\0\4\0\2" + bytes(1023))  # the largest frame there is
            except BlockingIOError:
                break
            while second.poll() is None:
                pass
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
