"""The hub: ranks of one host meet, exchange blobs and descriptors, and fail together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
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
    together,
)

from kadril.errors import ClosedError, RendezvousError
from kadril.world import gathering, joining, unix
from kadril.world.hub import Hub
from kadril.world.wire import MAX_BLOB, Kind


@pytest.fixture
def place() -> Iterator[Place]:
    with make_place() as made:
        yield made


def texts(outcomes: list[Outcome]) -> list[str]:
    """Return the message that every rank got; each must have raised RendezvousError."""
    for outcome in outcomes:
        outcome.join()
        assert isinstance(outcome.error, RendezvousError), repr(outcome.error or outcome.value)
    return [str(outcome.error) for outcome in outcomes]


# Meeting


@pytest.mark.parametrize("size", [2, 4])
def test_processes_exchange_blobs_and_descriptors(place: Place, size: int) -> None:
    place.listener.close()  # rank 0 binds the path itself
    Path(place.path).unlink()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(rank_process(place, "exchange", rank, size)) for rank in range(size)
        ]
        for process in processes:
            assert read_line(process) == {
                "blobs": [f"blob {rank}" for rank in range(size)],
                "shared": "file 0",
                "files": [f"file {rank}" for rank in range(size)],
                "inheritable": [False] * (size + 1),
            }
        for process in processes:
            assert process.wait(10) == 0
    assert not Path(place.path).exists(), "rank 0 removes the socket that it has bound"


def test_a_hub_of_one_needs_nobody() -> None:
    with Hub.open("", bytes(32), 0, 1, job="j", generation=0, timeout=1) as hub:
        assert hub.allgather(b"x") == [b"x"]
        with Path("/dev/null").open() as file:
            for descriptor in [hub.broadcast_fd(file.fileno()), *hub.allgather_fds(file.fileno())]:
                assert os.path.sameopenfile(descriptor, file.fileno())
                os.close(descriptor)


def test_blobs_of_every_size_up_to_the_limit(place: Place) -> None:
    hubs = open_hubs(place, 3)
    for num_bytes in (0, 1, 65536, MAX_BLOB):
        blobs = [bytes([rank]) * num_bytes for rank in range(3)]
        got = together(
            [lambda h=hub, b=blob: h.allgather(b) for hub, blob in zip(hubs, blobs, strict=True)]
        )
        assert got == [blobs] * 3
    with pytest.raises(ValueError, match="1048576"):
        hubs[1].allgather(bytes(MAX_BLOB + 1))
    for hub in hubs:
        hub.close()


def test_a_hundred_generations_leak_nothing(place: Place) -> None:
    """Opened and closed in a row (F28): the listening socket stays, all else comes and goes."""
    for hub in open_hubs(place, 3, 0):
        hub.close()
    before = num_descriptors(), threading.active_count()

    def run(rank: int) -> None:
        for generation in range(1, 101):
            with place.open(rank, 3, generation) as hub:
                assert hub.allgather(b"%d" % generation) == [b"%d" % generation] * 3

    together([lambda r=rank: run(r) for rank in range(3)])
    assert (num_descriptors(), threading.active_count()) == before


def test_a_rank_that_is_ahead_is_held(place: Place) -> None:
    """A fast rank reaches generation 1 while rank 0 still gathers generation 0."""
    server = Outcome(lambda: place.open(0, 3, 0))
    ahead = RawClient(place)
    ahead.claim(1, 3, generation=1)
    peers = [Outcome(lambda r=rank: place.open(r, 3, 0)) for rank in (1, 2)]
    first = [outcome.get() for outcome in (server, *peers)]
    server = Outcome(lambda: place.open(0, 3, 1))
    other = Outcome(lambda: place.open(2, 3, 1))
    assert ahead.receive().kind is Kind.WELCOME
    assert ahead.receive().kind is Kind.START
    for hub in [*first, server.get(), other.get()]:
        hub.close()
    ahead.close()


def test_a_held_rank_that_gave_up_is_forgotten(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2, 0))
    with RawClient(place) as ahead:
        ahead.claim(1, 2, generation=1)
    first = [place.open(1, 2, 0), server.get()]
    second = open_hubs(place, 2, 1)
    assert [hub.rank for hub in (*first, *second)] == [1, 0, 0, 1]
    for hub in (*first, *second):
        hub.close()


def test_a_rank_that_is_ahead_of_a_socket_that_goes_away(place: Place) -> None:
    """Rank 0 binds the path for each generation: who was held is let go, and comes again."""
    place.listener.close()
    Path(place.path).unlink()
    place.listener = None
    server = Outcome(lambda: place.open(0, 2, 0))
    ahead = Outcome(lambda: place.open(1, 2, 1))
    with RawClient(place) as witness:
        witness.claim(1, 2, generation=1)
        first = [place.open(1, 2, 0), server.get()]
        assert witness.is_dropped()
    second = [place.open(0, 2, 1), ahead.get()]
    for hub in [*first, *second]:
        hub.close()


def test_a_rank_that_is_behind_is_refused_and_harms_nobody(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 2, 7))
    stale = Outcome(lambda: place.open(1, 2, 6))
    (text,) = texts([stale])
    assert "generation 6 of this job is over, it is in generation 7" in text
    for hub in (place.open(1, 2, 7), server.get()):
        hub.close()


def test_a_path_longer_than_a_socket_address(place: Place) -> None:
    directory = Path(place.directory, "d" * 100, "e" * 100)
    directory.mkdir(parents=True)
    long = Place(str(directory), listener=unix.listen(f"{directory}/hub.sock"))
    hubs = open_hubs(long, 2)
    assert [hub.rank for hub in hubs] == [0, 1]
    for hub in hubs:
        hub.close()
    long.listener.close()


# Disagreement: told to all, naming both sides (F36)


def test_sizes_that_differ(place: Place) -> None:
    outcomes = [
        Outcome(lambda: place.open(0, 3)),
        Outcome(lambda: place.open(1, 4)),
        Outcome(lambda: place.open(2, 3)),
    ]
    for text in texts(outcomes):
        assert "rank 0 was told that the world has 3 ranks" in text
        assert "(rank 1 of 4) that it has 4" in text


def test_a_rank_that_two_processes_claim(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LINGER_SECONDS", 0.2)  # rank 2 never comes
    outcomes = [Outcome(lambda r=rank: place.open(r, 3)) for rank in (0, 1, 1)]
    for text in texts(outcomes):
        assert (
            f"two processes claim rank 1: process {os.getpid()} and process {os.getpid()}" in text
        )


@pytest.mark.parametrize(("rank", "size"), [(5, 2), (2**32 - 1, 2), (0, 2)])
def test_a_rank_that_does_not_exist(
    place: Place, monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    monkeypatch.setattr(gathering, "LINGER_SECONDS", 0.2)
    server = Outcome(lambda: place.open(0, size))
    with RawClient(place) as hostile:
        hostile.claim(rank, size)
        assert hostile.receive().kind is Kind.WELCOME
        told = hostile.receive()
    assert told.kind is Kind.FAILED
    assert f"(rank {rank} of {size}) is not one of ranks 1 to 1" in told.payload.decode()
    assert texts([server])[0].endswith(told.payload.decode())


def test_another_version_of_the_protocol(place: Place) -> None:
    outcomes = [Outcome(lambda r=rank: place.open(r, 3)) for rank in (0, 1)]
    with RawClient(place) as newer:
        newer.claim(2, 3, version=9)
        assert newer.receive().kind is Kind.WELCOME
        assert newer.receive().kind is Kind.FAILED
    for text in texts(outcomes):
        assert "rank 0 speaks version 1" in text
        assert "(rank 2 of 3) version 9" in text


def test_ranks_that_arrive_after_the_fault_hear_of_it_too(place: Place) -> None:
    server = Outcome(lambda: place.open(0, 3))
    with RawClient(place) as wrong:
        wrong.claim(1, 99)
        assert wrong.receive().kind is Kind.WELCOME
        late = Outcome(lambda: place.open(2, 3))
        assert wrong.receive().kind is Kind.FAILED
    for text in texts([server, late]):
        assert "99" in text


# Ranks that are missing, late, or die


def test_a_rank_that_never_comes_is_named_on_all(place: Place) -> None:
    outcomes = [Outcome(lambda r=rank: place.open(r, 4, timeout=0.5)) for rank in (0, 2)]
    for text in texts(outcomes):
        assert "ranks 1, 3 of 4 did not come within 0.5 s" in text
    for outcome in outcomes:
        assert 0.4 < outcome.seconds < 3


def test_rank_0_never_comes(place: Place) -> None:
    (text,) = texts([Outcome(lambda: place.open(1, 2, timeout=0.3))])
    assert "rank 1: rank 0 did not answer" in text
    place.listener.close()
    Path(place.path).unlink()
    (text,) = texts([Outcome(lambda: place.open(1, 2, timeout=0.3))])
    assert "rank 1: rank 0 did not answer" in text


def test_rank_0_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that refuses is what a dead rank 0 leaves: no use in waiting out the timeout."""
    monkeypatch.setattr(unix, "REFUSED_SECONDS", 0.2)
    place.listener.close()
    outcome = Outcome(lambda: place.open(1, 2, timeout=60))
    assert "rank 0 has ended" in texts([outcome])[0]
    assert outcome.seconds < 5


def test_patience_of_a_peer_follows_that_of_rank_0(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 comes long before rank 0; its own time is up first, yet it hears who is missing."""
    monkeypatch.setattr(joining, "SLACK_SECONDS", 0.3)
    early = Outcome(lambda: place.open(1, 3, timeout=0.3))
    server = Outcome(lambda: place.open(0, 3, timeout=0.9))
    for text in texts([early, server]):
        assert "rank 2 of 3 did not come" in text


def test_a_rank_that_leaves_while_the_ranks_meet(place: Place) -> None:
    outcomes = [Outcome(lambda r=rank: place.open(r, 4)) for rank in (0, 1)]
    with RawClient(place) as dying:
        dying.claim(2, 4)
        assert dying.receive().kind is Kind.WELCOME
    with rank_process(place, "join", 3, 4) as late:
        told = read_line(late)
    for text in [*texts(outcomes), told["text"]]:
        assert f"rank 2 (process {os.getpid()}) left or died while the ranks were meeting" in text


def test_a_rank_killed_after_the_meeting(place: Place) -> None:
    outcomes = [Outcome(lambda r=rank: place.open(r, 3)) for rank in (0, 1)]
    with rank_process(place, "wait", 2, 3) as process:
        assert read_line(process) == {"state": "open"}
        hubs = [outcome.get() for outcome in outcomes]
        calls = [Outcome(lambda h=hub: h.allgather(b"")) for hub in hubs]
        process.send_signal(signal.SIGKILL)
        for text in texts(calls):
            assert "rank 2 left or died during the set-up" in text
    for hub in hubs:
        with pytest.raises(ClosedError):
            hub.allgather(b"")


def test_rank_0_killed_after_the_meeting(place: Place) -> None:
    place.listener.close()
    Path(place.path).unlink()
    with rank_process(place, "wait", 0, 2) as process:
        hub = place.open(1, 2)
        assert read_line(process) == {"state": "open"}
        call = Outcome(lambda: hub.allgather(b""))
        process.kill()
        assert "rank 1: rank 0 left or died" in texts([call])[0]


def test_a_rank_that_is_late_for_an_exchange_is_named(place: Place) -> None:
    hubs = together([lambda r=rank: place.open(r, 3, timeout=0.3) for rank in range(3)])
    calls = [Outcome(lambda h=hub: h.allgather(b"")) for hub in hubs[:2]]
    for text in texts(calls):
        assert "rank 2 did not take part in BLOB within 0.3 s" in text
    hubs[2].close()


def test_calls_that_differ(place: Place) -> None:
    hubs = open_hubs(place, 3)
    before = num_descriptors()
    with Path("/dev/null").open() as file:
        calls = [
            Outcome(lambda: hubs[0].allgather(b"")),
            Outcome(lambda: hubs[1].allgather(b"")),
            Outcome(lambda: hubs[2].allgather_fds(file.fileno())),
        ]
        for text in texts(calls):
            assert "rank 0 waits for BLOB, and rank 2 sent DESCRIPTOR" in text
    assert num_descriptors() == before - 4, "the four ends are closed, and no descriptor is left"


# State


def test_in_a_child_made_by_fork(place: Place) -> None:
    """The child is told at once, and the parent goes on."""
    server = Outcome(lambda: place.open(0, 2))
    with rank_process(place, "fork", 1, 2) as process:
        assert read_line(process) == {"error": "ForkedError"}
        with server.get() as hub:
            assert hub.allgather(b"server") == [b"server", b"parent"]
        assert read_line(process) == {"blobs": ["server", "parent"]}


def test_after_close(place: Place) -> None:
    hubs = open_hubs(place, 2)
    for hub in hubs:
        hub.close()
        hub.close()
        with pytest.raises(ClosedError):
            hub.broadcast_fd(None if hub.rank else 0)


def test_arguments_that_make_no_sense(place: Place) -> None:
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank must be"):
            place.open(rank, size)
    with pytest.raises(ValueError, match="32 bytes"):
        place.open(0, 2, secret=b"short")
    with place.open(0, 1) as hub, pytest.raises(ValueError, match="only rank 0"):
        hub.broadcast_fd(None)


def test_twenty_jobs_at_once() -> None:
    """Two jobs of one user on one host never meet (F37)."""

    def run_job(number: int) -> bool:
        with make_place() as place:
            place.job = f"job {number}"
            hubs = open_hubs(place, 3)
            blobs = together([lambda h=hub: h.allgather(place.job.encode()) for hub in hubs])
            for hub in hubs:
                hub.close()
            return blobs == [[place.job.encode()] * 3] * 3

    assert all(together([lambda n=number: run_job(n) for number in range(20)]))
