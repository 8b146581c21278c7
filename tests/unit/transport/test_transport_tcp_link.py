"""One connection of the tcp transport: frames into memory, last words, ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kadril.transport.ending import Ending
from kadril.transport.keepalive import set_liveness
from kadril.transport.tcp_link import HEADER, MAX_FRAME, FrameError, FrameKind, TcpLink, Transfer

PACKET, MEETING, NOTE = FrameKind.PACKET, FrameKind.MEETING, FrameKind.NOTE


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for each in (ours, theirs):
        set_liveness(each, 10.0)
    with ours, theirs:
        yield ours, theirs


def pump(transfer: Transfer, *links: TcpLink) -> None:
    """Move bytes until a transfer is through; the test's timeout bounds it."""
    while transfer.num_left:
        for link in links:
            link.push()
            link.pull()


def wait_for_end(link: TcpLink) -> None:
    while not link.is_ended:
        link.pull()


def test_messages_of_many_frames_arrive_in_order(ends: tuple[socket.socket, ...]) -> None:
    a, b = TcpLink(ends[0], 1), TcpLink(ends[1], 0)
    transfer = Transfer()
    lengths = [1, MAX_FRAME, 3 * MAX_FRAME + 17, 40_000, 5]
    sent = [bytes([place + 1]) * length for place, length in enumerate(lengths)]
    memories = [bytearray(length) for length in lengths]
    for data, memory in zip(sent, memories, strict=True):
        b.expect(PACKET, memoryview(memory), transfer)
        a.send(PACKET, memoryview(data), transfer)
    pump(transfer, a, b)
    assert memories == sent
    assert transfer.moved == transfer.total == 2 * sum(lengths)
    assert not any(transfer.peers.values())


def test_what_comes_early_waits_until_it_is_expected(ends: tuple[socket.socket, ...]) -> None:
    """A peer that has completed a call may send its next while this rank is still in the last."""
    a, b = TcpLink(ends[0], 1), TcpLink(ends[1], 0)
    transfer = Transfer()
    a.send(MEETING, memoryview(b"first"), transfer)
    a.send(MEETING, memoryview(b"second"), transfer)
    a.push()
    while b.wants_to_read:
        b.pull()
    for length, expected in ((5, b"first"), (6, b"second")):
        memory = bytearray(length)
        awaited = Transfer()
        b.expect(MEETING, memoryview(memory), awaited)
        pump(awaited, b)
        assert memory == expected


def test_a_last_word_follows_a_frame_that_was_begun(ends: tuple[socket.socket, ...]) -> None:
    """A rank that is interrupted while it sends tells why, and its peer does not wait for more."""
    a, b = TcpLink(ends[0], 1), TcpLink(ends[1], 0)
    transfer = Transfer()
    data, memory = bytes(64 * MAX_FRAME), bytearray(64 * MAX_FRAME)
    a.send(PACKET, memoryview(data), transfer)
    a.push()  # until the kernel takes no more
    assert a.wants_to_send
    b.expect(PACKET, memoryview(memory), transfer)
    a.say_last(Ending("revoked", 3, 1, "Ctrl-C"))
    reader = threading.Thread(target=wait_for_end, args=(b,))
    reader.start()
    while a.wants_to_send:
        a.push()
    reader.join()
    assert b.ending == Ending("revoked", 3, 1, "Ctrl-C")
    assert b.loss == ""
    assert transfer.num_left == 2


def test_the_end_of_a_process_is_a_loss(ends: tuple[socket.socket, ...]) -> None:
    b = TcpLink(ends[1], 0)
    ends[0].close()
    wait_for_end(b)
    assert b.ending is None
    assert "closed" in b.loss


@pytest.mark.parametrize(
    ("kind", "length"),
    [(9, 4), (PACKET, 0), (PACKET, MAX_FRAME + 1), (NOTE, 1 << 20), (MEETING, 4), (PACKET, 9)],
    ids=["kind", "empty", "long", "long note", "other kind", "longer than expected"],
)
def test_what_is_no_frame_is_refused(
    ends: tuple[socket.socket, ...], kind: int, length: int
) -> None:
    b = TcpLink(ends[1], 0)
    b.expect(PACKET, memoryview(bytearray(8)), Transfer())
    ends[0].sendall(HEADER.pack(kind, length))
    with pytest.raises(FrameError):
        wait_for_end(b)


def test_a_peer_that_reads_nothing_is_not_dead(ends: tuple[socket.socket, ...]) -> None:
    """The kernel of the peer acknowledges, with a window of zero."""
    a = TcpLink(ends[0], 1)
    a.send(PACKET, memoryview(bytes(64 * MAX_FRAME)), Transfer())
    for _ in range(3):
        a.push()
        a.check_alive(timeout=5.0)
    assert not a.is_ended


class Interrupted(socket.socket):
    """A socket whose user is interrupted right after something was sent."""

    def sendmsg(self, *arguments: object) -> int:  # type: ignore[override]
        super().sendmsg(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt


def test_an_interrupt_while_sending_ends_the_connection(ends: tuple[socket.socket, ...]) -> None:
    """The other side took the last word for the rest of a packet, and called it nonsense."""
    ours = Interrupted(fileno=ends[0].detach())
    a, b = TcpLink(ours, 1), TcpLink(ends[1], 0)
    transfer, length = Transfer(), 16 * MAX_FRAME  # more than the kernel takes at once
    b.expect(PACKET, memoryview(bytearray(length)), transfer)
    a.send(PACKET, memoryview(bytes(length)), transfer)
    with pytest.raises(KeyboardInterrupt):
        a.push()
    a.say_last(Ending("revoked", 0, 0, "KeyboardInterrupt"))
    wait_for_end(b)
    assert b.loss == "closed by the other side"
    assert b.ending is None
    a.close()
