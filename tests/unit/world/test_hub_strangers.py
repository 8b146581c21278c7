"""Strangers at the hub's door (F34, F35): refused before anything is read, in nobody's way."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_place import (
    Outcome,
    Place,
    RawClient,
    make_place,
    num_descriptors,
    open_hubs,
    rank_process,
    read_line,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kadril.errors import RendezvousError
from kadril.world import door, unix
from kadril.world.deadline import Deadline
from kadril.world.handshake import make_nonce, make_verdict
from kadril.world.wire import Connection, Kind, PeerClosedError, encode

JOIN_SECONDS = 1.0

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": bytes(4096),
    "huge length": struct.pack("!I", 2**32 - 1) + b"x",
    "a length just above the limit": struct.pack("!I", 1025) + b"\x02",
    "length zero": struct.pack("!I", 0),
    "unknown kind": struct.pack("!IB", 10, 200),
    "a frame that is not due": encode(Kind.BLOB, b"hello"),
    "a descriptor frame without one": encode(Kind.DESCRIPTOR),
    "a claim that is too short": encode(Kind.CLAIM, b"x"),
    "a claim of zeros": encode(Kind.CLAIM, bytes(156)),
    "a megabyte": random.Random(1).randbytes(1 << 20),
}


@pytest.fixture
def place() -> Iterator[Place]:
    with make_place() as made:
        yield made


def join_takes(place: Place, server: Outcome) -> float:
    """Seconds that rank 1 needs to join while strangers are at the door."""
    peer = Outcome(lambda: place.open(1, 2))
    peer.get().close()
    server.get().close()
    return peer.seconds


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_dropped_at_once(place: Place, name: str) -> None:
    server = Outcome(lambda: place.open(0, 2))
    with RawClient(place) as stranger:
        stranger.hear_challenge()
        stranger.connection.socket.settimeout(10)
        with contextlib.suppress(OSError):  # dropped before all was sent
            stranger.connection.socket.sendall(GARBAGE[name])
        start = time.monotonic()
        assert stranger.is_dropped()
        assert time.monotonic() - start < JOIN_SECONDS
    assert join_takes(place, server) < JOIN_SECONDS


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_no_bytes_can_keep_a_rank_out(chunks: list[bytes]) -> None:
    with make_place() as place:
        server = Outcome(lambda: place.open(0, 2))
        with RawClient(place) as stranger:
            stranger.hear_challenge()
            try:
                for chunk in chunks:
                    stranger.connection.socket.sendall(chunk)
            except OSError:
                pass
            assert join_takes(place, server) < JOIN_SECONDS


def test_a_thousand_idle_connections(place: Place) -> None:
    """A store with a name lookup for each connection took more than 20 s to let a rank in here."""
    idle = [unix.connect(place.path, Deadline(10)) for _ in range(1000)]
    before = num_descriptors()
    server = Outcome(lambda: place.open(0, 2))
    seconds = join_takes(place, server)
    assert seconds < JOIN_SECONDS
    assert num_descriptors() <= before
    for sock in idle:
        sock.close()


def test_at_most_64_strangers_are_held(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2))
    clients = [RawClient(place) for _ in range(door.MAX_VISITORS + 3)]
    for client in clients:
        client.hear_challenge()
    assert [client.is_dropped() for client in clients[:3]] == [True] * 3, "the oldest go first"
    assert not any(client.is_dropped(0.001) for client in clients[3:])
    assert join_takes(place, server) < JOIN_SECONDS
    for client in clients:
        client.close()


def test_a_flood_that_does_not_end(place: Place) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(place.path)
            except BlockingIOError:
                time.sleep(0.001)  # the queue is full; leave the core to those under test
            finally:
                sock.close()

    flooding = Outcome(flood)
    try:
        assert join_takes(place, Outcome(lambda: place.open(0, 2))) < 5
    finally:
        stop.set()
        flooding.get()


def test_a_stranger_has_seconds_for_a_proof(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte at a time: neither idle nor ever done."""
    monkeypatch.setattr(door, "PROOF_SECONDS", 0.3)
    server = Outcome(lambda: place.open(0, 2))
    with RawClient(place) as slow:
        slow.hear_challenge()
        start = time.monotonic()
        slow.connection.socket.sendall(encode(Kind.CLAIM, bytes(156))[:20])
        assert slow.is_dropped()
        assert 0.2 < time.monotonic() - start < 2
    assert join_takes(place, server) < JOIN_SECONDS


# Those who know something, and not enough


def test_a_wrong_secret(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2))
    wrong = Outcome(lambda: place.open(1, 2, secret=bytes(32))).join()
    assert isinstance(wrong.error, RendezvousError)
    assert "did not accept the proof of this process" in str(wrong.error)
    assert wrong.seconds < JOIN_SECONDS
    assert join_takes(place, server) < JOIN_SECONDS


def test_another_job_with_the_same_secret(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2))
    other = Outcome(lambda: place.open(1, 2, job="another")).join()
    assert isinstance(other.error, RendezvousError)
    assert join_takes(place, server) < JOIN_SECONDS


def test_a_replayed_claim(place: Place) -> None:
    """Messages recorded in a good handshake are worthless on the next connection."""
    server = Outcome(lambda: place.open(0, 2))
    with RawClient(place) as good:
        recorded = good.claim(1, 2)
        assert good.receive().kind is Kind.WELCOME
        assert good.receive().kind is Kind.START
        server.get().close()
    server = Outcome(lambda: place.open(0, 2))
    with RawClient(place) as replay:
        replay.hear_challenge()
        replay.send(Kind.CLAIM, recorded)
        assert replay.is_dropped()
    assert join_takes(place, server) < JOIN_SECONDS


def test_an_impostor_in_the_place_of_rank_0(place: Place) -> None:
    """An impostor has the socket, not the secret: the peer finds out, and sends him nothing."""
    peer = Outcome(lambda: place.open(1, 2))
    assert place.listener is not None
    place.listener.setblocking(True)
    sock, _ = place.listener.accept()
    impostor = Connection(sock)
    challenge = make_nonce()
    impostor.send(Kind.CHALLENGE, challenge, deadline=Deadline(10))
    claim = impostor.receive(Deadline(10)).payload
    verdict = make_verdict(bytes(32), challenge, claim, Kind.WELCOME, b'{"remaining":9.5}')
    impostor.send(Kind.WELCOME, verdict, deadline=Deadline(10))
    with pytest.raises(PeerClosedError):
        impostor.receive(Deadline(10))
    impostor.close()
    peer.join()
    assert isinstance(peer.error, RendezvousError)
    assert "is not rank 0 of this job" in str(peer.error)


def test_a_claim_sent_back_is_no_proof_of_rank_0(place: Place) -> None:
    peer = Outcome(lambda: place.open(1, 2))
    assert place.listener is not None
    place.listener.setblocking(True)
    sock, _ = place.listener.accept()
    mirror = Connection(sock)
    mirror.send(Kind.CHALLENGE, make_nonce(), deadline=Deadline(10))
    claim = mirror.receive(Deadline(10)).payload
    mirror.send(Kind.WELCOME, claim[-32:] + b'{"remaining":9.5}', deadline=Deadline(10))
    peer.join()
    mirror.close()
    assert "is not rank 0 of this job" in str(peer.error)


@pytest.fixture
def open_place() -> Iterator[Place]:
    """A place whose modes let everybody in, which no launcher would make."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with make_place("/tmp") as made:  # noqa: S108 - below no directory that is closed to others
        Path(made.directory).chmod(0o755)
        Path(made.path).chmod(0o777)
        yield made


def test_another_user(open_place: Place) -> None:
    """Another user may have the secret: he sees that somebody else listens."""
    server = Outcome(lambda: open_place.open(0, 2))
    with rank_process(open_place, "be_nobody", 1, 2, timeout=2.0) as nobody:
        told = read_line(nobody)
    assert told["error"] == "RendezvousError"
    assert "runs as user 65534, and user 0 listens" in told["text"]
    assert join_takes(open_place, server) < JOIN_SECONDS


def test_another_user_who_does_not_look(open_place: Place) -> None:
    """A user who skips his own check: rank 0 drops him before a challenge."""
    server = Outcome(lambda: open_place.open(0, 2))
    with rank_process(open_place, "knock", 1, 2) as nobody:
        assert read_line(nobody) == {"received": ""}
    assert join_takes(open_place, server) < JOIN_SECONDS


# What strangers leave behind


def test_descriptors_of_strangers_are_not_taken(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2))
    with RawClient(place) as stranger, Path("/dev/null").open() as file:
        stranger.hear_challenge()
        before = num_descriptors()
        socket.send_fds(stranger.connection.socket, [b"\0\0\0\5\2"], [file.fileno()] * 100)
        with RawClient(place) as second:  # its challenge comes after the first was read
            second.hear_challenge()
            assert num_descriptors() <= before + 2, "two ends of the second connection, no more"
    assert join_takes(place, server) < JOIN_SECONDS


def test_one_log_line_for_each_source(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="kadril")
    server = Outcome(lambda: place.open(0, 2))
    for _ in range(20):
        with RawClient(place) as stranger:
            stranger.hear_challenge()
            stranger.send(Kind.BLOB)
            assert stranger.is_dropped()
    assert join_takes(place, server) < JOIN_SECONDS
    lines = [record.getMessage() for record in caplog.records if record.name == "kadril"]
    assert lines == [
        f"rendezvous: refused a connection of process {os.getpid()}:"
        " it sent BLOB where a claim was due"
    ]


def test_the_secret_is_never_shown(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="kadril")
    hubs = open_hubs(place, 2)
    wrong = bytes(range(32))
    server = Outcome(lambda: place.open(0, 2, generation=1))
    bad = Outcome(lambda: place.open(1, 2, generation=1, secret=wrong)).join()
    place.open(1, 2, generation=1).close()
    server.get().close()
    shown = " ".join([caplog.text, repr(hubs), str(bad.error)])
    for secret in (place.secret, wrong):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
    for hub in hubs:
        hub.close()
