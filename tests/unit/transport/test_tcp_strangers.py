"""The port of a host: ranks of the job find each other there, strangers change nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kadril.config import Config
from kadril.errors import ConfigError, RendezvousError
from kadril.world.acceptor import ARRIVAL, Acceptor
from kadril.world.bootstrap.tcp import TcpBootstrap
from kadril.world.deadline import Deadline
from kadril.world.handshake import LinkClaim, digest, make_claim
from kadril.world.inet import address_of, bind
from kadril.world.joining import find, introduce
from kadril.world.place import TcpPlace
from kadril.world.wire import Connection, Kind, PeerClosedError, encode

SECRET, OTHER = bytes(range(32)), bytes(32)
GROUP = digest("world")

JOIN_SECONDS = 1.0
MEMORY_SLACK = 8 << 20  # bytes; a thousand connections with 64 KiB each would be eight times that

Meet = Callable[..., "Future[TcpBootstrap]"]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def meet(port: int) -> Iterator[Meet]:
    """Meet as a rank, in a thread of its own."""
    with ThreadPoolExecutor(4) as pool:

        def start(
            rank: int, secret: bytes = SECRET, generation: int = 0, timeout: float = 20.0
        ) -> Future[TcpBootstrap]:
            config = Config(connect_timeout=timeout)
            open_here = functools.partial(TcpBootstrap.open, job="j", config=config)
            place = ("127.0.0.1", port, rank, 2)
            return pool.submit(open_here, *place, generation=generation, secret=secret)

        yield start


def exchange(ranks: list[TcpBootstrap]) -> None:
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda each: each.exchange(bytes([each.rank])), ranks))
    assert told == [[b"\0", b"\1"]] * 2


def close(ranks: list[TcpBootstrap]) -> None:
    for each in ranks:
        each.close()


def connect(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    return TcpPlace("127.0.0.1", port).connect(Deadline(20.0))


def test_strangers_at_the_rendezvous_change_nothing(meet: Meet, port: int) -> None:
    first = meet(0)
    idle = [connect(port) for _ in range(100)]
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 2000, encode(Kind.CLAIM, bytes(200))):
        with connect(port) as stranger:
            stranger.sendall(data)
    ranks = [each.result(20.0) for each in (first, meet(1))]
    exchange(ranks)
    close(ranks)
    for each in idle:
        each.close()


def test_another_secret_is_refused_on_both_sides(meet: Meet) -> None:
    first, second = meet(0, timeout=2.0), meet(1, secret=OTHER, timeout=2.0)
    with pytest.raises(RendezvousError, match="same KADRIL_JOB and KADRIL_SECRET_FILE"):
        second.result(20.0)
    with pytest.raises(RendezvousError, match="rank 1 of 2 did not come"):
        first.result(20.0)


def test_a_rank_that_is_ahead_waits_for_the_next_generation(meet: Meet) -> None:
    """While rank 0 is still in the last world, its port is in the hands of the acceptor."""
    ranks = [each.result(20.0) for each in (meet(0), meet(1))]
    assert ranks[0].listener is not None
    acceptor = Acceptor(ranks[0].listener, SECRET, "j", 0, {})
    ranks[1].close()
    ahead = meet(1, generation=1)
    acceptor.close()  # it has come, or not: both orders must work
    ranks[0].close()
    ranks = [each.result(20.0) for each in (meet(0, generation=1), ahead)]
    exchange(ranks)
    close(ranks)


def test_a_listener_that_resets_connections_is_asked_again() -> None:
    """Seen: rank 0 left just when rank 1 was connected, and rank 1 gave up with ENOTCONN."""
    num_resets = 2000  # some 30 of them are noticed where the address of the peer is asked for
    at_once = struct.pack("ii", 1, 0)
    with bind("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as pool:

        def reset_all() -> None:
            for _ in range(num_resets):
                peer, _ = listener.accept()
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                peer.close()

        resets = pool.submit(reset_all)
        place = TcpPlace("127.0.0.1", listener.getsockname()[1])
        try:
            while not resets.done():
                place.connect(Deadline(20.0)).close()
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits in accept()
        assert resets.exception() is None, "connections were not reset to the end"


def test_a_connection_that_only_one_end_knows_of_is_made_anew() -> None:
    """Seen: a listener closed while a rank connected, which then waited for ever."""
    with bind("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as pool:
        place = TcpPlace("127.0.0.1", listener.getsockname()[1])
        finding = pool.submit(find, place, 1, Deadline(20.0), 20.0)
        silent, _ = listener.accept()
        second, _ = listener.accept()
        Connection(second).send(Kind.CHALLENGE, bytes(32), deadline=Deadline(5.0))
        connection, challenge = finding.result(20.0)
        assert challenge == bytes(32)
        connection.close()
        silent.close()
        second.close()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "huge length": struct.pack("!I", 2**32 - 1) + b"x",
    "length zero": struct.pack("!I", 0),
    "unknown kind": struct.pack("!IB", 10, 200),
    "a frame that is not due": encode(Kind.BLOB, b"hello"),
    "a claim of zeros": encode(Kind.CLAIM, bytes(156)),
    "half a claim": encode(Kind.CLAIM, bytes(156))[:20],
    "a megabyte": random.Random(1).randbytes(1 << 20),
}


@contextlib.contextmanager
def strangers(port: int, num_idle: int = 1000) -> Iterator[None]:
    """Have idle connections at a port, and send it garbage of every kind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    idle = [connect(port) for _ in range(num_idle)]
    for data in GARBAGE.values():
        with connect(port) as stranger, contextlib.suppress(OSError):  # dropped before all was sent
            stranger.sendall(data)
    try:
        yield
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_thousand_idle_strangers_and_garbage_at_the_rendezvous(meet: Meet, port: int) -> None:
    """F35: torch's store takes more than 20 s to let a rank in here."""
    first = meet(0)
    with strangers(port, 100):  # what is allocated once is there now
        before = resident_bytes()
    with strangers(port):
        began = time.monotonic()
        ranks = [each.result(20.0) for each in (meet(1), first)]
        assert time.monotonic() - began < JOIN_SECONDS
        exchange(ranks)
        assert resident_bytes() - before < MEMORY_SLACK
    close(ranks)


def test_a_thousand_idle_strangers_and_garbage_at_the_port_of_a_host(
    host: tuple[TcpPlace, Connection],
) -> None:
    """F35: the port by which ranks of other hosts reach those of this one."""
    place, mailbox = host
    with strangers(place.port, 100):
        before = resident_bytes()
    with strangers(place.port):
        began = time.monotonic()
        connection, verdict = call(place, LinkClaim(7, 2, "j", 5, GROUP))
        assert verdict == (Kind.WELCOME, "")
        frame = mailbox.receive(Deadline(20.0))
        assert time.monotonic() - began < JOIN_SECONDS
        assert resident_bytes() - before < MEMORY_SLACK
        assert frame.descriptor is not None
        socket.socket(fileno=frame.descriptor).close()
        connection.close()


def take_all_descriptors(stack: contextlib.ExitStack) -> list[int]:
    """Take what descriptors there are, but for one; return them. A low limit makes it quick."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 20, limits[1]))
    taken = [lowest]
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    os.close(lowest)
    return taken


def test_an_honest_visitor_is_kept_when_descriptors_run_out(
    host: tuple[TcpPlace, Connection],
) -> None:
    """Seen: one that was about to prove itself was dropped to make room for nobody."""
    place, mailbox = host
    visitor = socket.socket()
    with contextlib.ExitStack() as stack:
        # The acceptor, a thread of this process, can accept one connection, and no other.
        for descriptor in take_all_descriptors(stack)[1:]:
            stack.callback(os.close, descriptor)
        visitor.settimeout(20.0)
        visitor.connect((place.host, place.port))
        connection = Connection(visitor)
        challenge = connection.receive(Deadline(20.0)).payload
        claim = LinkClaim(7, 2, "j", 5, GROUP)
        verdict = introduce(connection, SECRET, claim, challenge, Deadline(20.0))
        assert verdict is not None
        assert verdict.kind is Kind.WELCOME
    connection.close()
    frame = mailbox.receive(Deadline(20.0))
    assert frame.descriptor is not None
    os.close(frame.descriptor)


@pytest.fixture
def host() -> Iterator[tuple[TcpPlace, Connection]]:
    """The port of a host with rank 2, and where that rank gets its connections."""
    listener = bind("127.0.0.1", 0)
    mine, theirs = socket.socketpair()
    mailbox = Connection(mine)
    mailbox.trust()
    acceptor = Acceptor(listener, SECRET, "j", 5, {2: Connection(theirs)})
    yield TcpPlace("127.0.0.1", listener.getsockname()[1]), mailbox
    acceptor.close()
    mailbox.close()


def call(place: TcpPlace, claim: LinkClaim, secret: bytes = SECRET) -> tuple[Connection, object]:
    deadline = Deadline(20.0)
    connection, challenge = find(place, claim.source, deadline, 20.0)
    verdict = introduce(connection, secret, claim, challenge, deadline)
    return connection, verdict and (verdict.kind, verdict.payload.decode())


def test_a_connection_is_handed_to_its_rank(host: tuple[TcpPlace, Connection]) -> None:
    place, mailbox = host
    connection, verdict = call(place, LinkClaim(7, 2, "j", 5, GROUP))
    assert verdict == (Kind.WELCOME, "")
    frame = mailbox.receive(Deadline(20.0))
    assert ARRIVAL.unpack(frame.payload) == (7, GROUP)
    assert frame.descriptor is not None
    with socket.socket(fileno=frame.descriptor) as handed, connection.socket as kept:
        handed.settimeout(20.0)
        kept.sendall(b"hello")
        assert handed.recv(10) == b"hello"


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (LinkClaim(7, 3, "j", 5, GROUP), "rank 3 is not on this host"),
        (LinkClaim(7, 2, "j", 4, GROUP), "in generation 5"),
        (LinkClaim(7, 2, "j", 5, GROUP, version=99), "in generation 5"),
    ],
    ids=["other host", "old generation", "other version"],
)
def test_a_claim_that_does_not_fit_is_told_why(
    host: tuple[TcpPlace, Connection], claim: LinkClaim, reason: str
) -> None:
    connection, verdict = call(host[0], claim)
    connection.close()
    assert isinstance(verdict, tuple)
    assert verdict[0] == Kind.REFUSED
    assert reason in verdict[1]


def test_strangers_at_the_port_of_a_host_are_dropped(host: tuple[TcpPlace, Connection]) -> None:
    place, mailbox = host
    for claim, secret in (
        (LinkClaim(7, 2, "j", 5, GROUP), OTHER),
        (LinkClaim(7, 2, "another job", 5, GROUP), SECRET),
    ):
        connection, verdict = call(place, claim, secret)
        assert verdict is None  # closed without a word
        connection.close()
    # A proof that was recorded elsewhere is for another challenge.
    connection, _ = find(place, 7, Deadline(20.0), 20.0)
    recorded = make_claim(SECRET, LinkClaim(7, 2, "j", 5, GROUP), bytes(32))
    connection.send(Kind.CLAIM, recorded, deadline=Deadline(20.0))
    with pytest.raises(PeerClosedError):
        connection.receive(Deadline(20.0))
    connection.close()
    assert mailbox.poll() is None
    test_a_connection_is_handed_to_its_rank(host)


def test_addresses_of_interfaces() -> None:
    assert address_of("lo") == "127.0.0.1"
    assert address_of("10.1.2.3") == "10.1.2.3"
    with pytest.raises(ConfigError, match=r"KADRIL_INTERFACE=nosuch .* interfaces are .*lo"):
        address_of("nosuch")
