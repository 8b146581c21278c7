"""Room for bytes under way on a connection: what the formula gives, and what the kernel takes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from kadril.transport.send_window import HOST_BYTES, LEAST_BYTES, SendWindow, room_for
from kadril.transport.tcp_info import read_tcp_info

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection with packets of the size that they have between hosts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.socket()
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
        ours.connect(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_a_slow_link_is_shared_evenly() -> None:
    """100 Mbit/s are 12 MB/s: four connections carry 50 kB each in 16 ms, and get 64 KiB."""
    assert room_for(12e6 / 4, 30e-6, 4) == HOST_BYTES // 4 == 64 * KIB


def test_a_fast_link_gets_what_it_carries_while_a_rank_is_busy() -> None:
    assert room_for(120e6, 100e-6, 4) == 1_920_000  # 16 ms


def test_a_long_path_gets_two_round_trips() -> None:
    assert room_for(100e6, 0.05, 1) == 10_000_000


def test_room_that_was_too_little_doubles_until_it_is_enough() -> None:
    """A path of 50 ms and 100 MB/s holds 5 MB: a window of less moves all of it in a round trip."""
    round_trip, capacity = 0.05, 100e6
    room, steps = room_for(0.0, round_trip, 1), []
    for _ in range(8):
        rate = min(capacity, room / round_trip)
        room = room_for(rate, round_trip, 1)
        steps.append(room)
    assert steps[:3] == [2 * HOST_BYTES, 4 * HOST_BYTES, 8 * HOST_BYTES]
    assert steps[-1] == 10_000_000  # and no more


def test_many_connections_have_room_for_a_few_packets_each() -> None:
    assert room_for(0.0, 0.0, 4096) == LEAST_BYTES


def test_there_is_room_for_several_packets_however_long() -> None:
    """On the loopback a connection had room for less than one, and 40 ms passed with each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        info = read_tcp_info(ours)
        assert info is not None
        assert info.segment > 20 * KIB
        assert room_for(0.0, 0.0, 6, info.segment) == 8 * info.segment > HOST_BYTES // 6


def test_the_kernel_takes_no_more_than_the_room(ends: tuple[socket.socket, ...]) -> None:
    """One side takes what it may hold, and what the other side's buffer holds unread."""
    ours, theirs = ends
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    ours.setblocking(False)
    SendWindow(ours).adapt(num_sharing=4)
    taken = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            taken += ours.send(bytes(64 * KIB))
    # Before the window the kernel takes 2.5 MiB here. What the receiver had announced as its room
    # when the connection was made is 64 KiB.
    assert 64 * KIB <= taken <= 64 * KIB + 128 * KIB


def test_the_kernel_tells_what_was_acknowledged(ends: tuple[socket.socket, ...]) -> None:
    ours, theirs = ends
    before = read_tcp_info(ours)
    ours.sendall(bytes(1000))
    assert theirs.recv(1000, socket.MSG_WAITALL) == bytes(1000)
    theirs.sendall(b"1")  # carries the acknowledgement along
    assert ours.recv(1) == b"1"
    after = read_tcp_info(ours)
    assert before is not None
    assert after is not None
    assert after.bytes_acked - before.bytes_acked == 1000
    assert after.num_unacked == 0
    assert 0 < after.min_rtt < 1


def test_what_is_no_tcp_connection_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert read_tcp_info(ours) is None
        before = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        SendWindow(ours).adapt(num_sharing=1)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
