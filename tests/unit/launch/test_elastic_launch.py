"""Parts of the launcher of elastic jobs: who gets which rank, slots, cooldown, messages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kadril.errors import ConfigError, RendezvousError
from kadril.launch.elastic.fresh_start import FreshStart
from kadril.launch.elastic.host_slots import Backoff, Cooldown, read_listing
from kadril.launch.elastic.worker_set import WorkerSet
from kadril.launch.mapping.hosts import Host
from kadril.launch.supervision.summary import RankExit
from kadril.world.identity import Identity
from kadril.world.job_messages import JobMessage, MessageKind, MessageReader
from kadril.world.membership import Roster


@pytest.fixture
def workers() -> Iterator[WorkerSet]:
    """Make three workers of a generation, of which all have the state and are ready."""
    made = WorkerSet()
    for rank in range(3):
        worker = made.add()
        worker.rank, worker.is_ready, worker.has_state = rank, True, True
    made.has_state = True
    yield made
    for worker in made.by_place.values():
        worker.close()


def replace(workers: WorkerSet, place: int) -> None:
    """End a worker; another one comes."""
    workers.by_place.pop(place).close()
    assert workers.add().place == place
    workers.by_place[place].is_ready = True


def places(workers: WorkerSet, most: int) -> tuple[list[int], list[int]]:
    """Places by rank in the next generation, and places of those who are not in it."""
    chosen, others = workers.choose(most)
    return [each.place for each in chosen], [each.place for each in others]


def test_others_keep_their_ranks(workers: WorkerSet) -> None:
    replace(workers, 1)
    assert places(workers, 3) == ([0, 1, 2], [])


def test_rank_0_has_the_state(workers: WorkerSet) -> None:
    replace(workers, 0)
    assert places(workers, 3) == ([1, 0, 2], [])


def test_no_hole_is_left(workers: WorkerSet) -> None:
    workers.by_place.pop(0).close()
    assert places(workers, 3) == ([2, 1], [])


def test_the_newest_leave_first(workers: WorkerSet) -> None:
    replace(workers, 0)
    assert places(workers, 2) == ([2, 1], [0])
    assert places(workers, 1)[0] == [1]


def test_a_state_that_nobody_has_is_lost(workers: WorkerSet) -> None:
    assert not workers.is_lost
    for place in range(3):
        replace(workers, place)
    assert workers.is_lost


def test_listings_of_a_discovery_script() -> None:
    text = "localhost:4\n\n# none today\nother # one\n10.0.0.1:0\n"
    assert read_listing(text) == [Host("localhost", 4), Host("other", 1)]
    assert read_listing("a\n", slots_per_host=3) == [Host("a", 3)]
    with pytest.raises(ConfigError, match="localhost four"):
        read_listing("localhost four\n")


def test_a_host_is_set_aside_after_repeated_failures() -> None:
    cooldown = Cooldown(10.0, 30.0)
    assert [cooldown.note_failure(0.0) for _ in range(3)] == [0.0, 0.0, 10.0]
    assert cooldown.until == 10.0
    assert [cooldown.note_failure(10.0) for _ in range(3)] == [0.0, 0.0, 20.0]
    assert [cooldown.note_failure(40.0) for _ in range(3)] == [0.0, 0.0, 30.0]
    cooldown.note_success()
    assert [cooldown.note_failure(80.0) for _ in range(3)] == [0.0, 0.0, 10.0]


def test_a_rank_that_fails_again_and_again_is_replaced_later() -> None:
    backoff = Backoff(300.0)
    now, pauses = 0.0, []
    for _ in range(12):
        count, pause = backoff.note_failure(1, now)
        assert backoff.until == now + pause
        pauses.append(pause)
        now += pause + 59.0
    assert count == 12
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert backoff.note_failure(0, now) == (1, 0.0)  # another rank
    assert backoff.note_failure(1, now + 2.0) == (1, 0.0)  # that has been well for a minute


def ended(status: int, tail: bytes = b"", stopped_by: int = 0) -> RankExit:
    return RankExit(1, status, 0, 0.0, stopped_by, (tail,))


def test_ranks_are_started_anew_while_nobody_has_begun(workers: WorkerSet) -> None:
    """Not after a crash, nor after a signal of the launcher's; nor late, or without end."""
    fresh_start = FreshStart(window=600.0)
    fresh_start.note_meeting(10.0)
    assert not fresh_start.is_possible(workers, ended(-9), 11.0)  # they have a state
    workers.has_state = False
    assert fresh_start.is_possible(workers, ended(-9), 11.0)
    assert fresh_start.is_possible(workers, ended(137), 11.0)  # of a shell
    assert not fresh_start.is_possible(workers, ended(-9), 610.0)
    for other in (ended(1), ended(-11), ended(-9, stopped_by=9)):
        assert not fresh_start.is_possible(workers, other, 11.0)
    workers.by_place[0].listens = True
    assert not fresh_start.is_possible(workers, ended(-9), 11.0)
    workers.by_place[0].listens = False
    for _ in range(3):
        assert fresh_start.is_possible(workers, ended(-9), 11.0)
        fresh_start.begin()
    assert not fresh_start.is_possible(workers, ended(-9), 11.0)


def test_a_lost_peer_may_be_heard_of_before_its_end_is_seen() -> None:
    fresh_start = FreshStart(window=600.0)
    echo, error = ended(1, b"kadril.errors.PeerLost: rank 0"), ended(1, b"ValueError")
    assert not fresh_start.hold(error, 5.0)
    assert fresh_start.hold(echo, 5.0)
    assert 5.0 < fresh_start.held_until <= 10.0
    assert fresh_start.take_held() == [echo]
    assert fresh_start.held_until == float("inf")
    assert fresh_start.hold(echo, 5.0)
    fresh_start.begin()
    assert fresh_start.take_held() == []


def test_messages_come_whole() -> None:
    reader = MessageReader("rank 1")
    ready = JobMessage.of(MessageKind.READY, generation=3, stalled=-1, keeps=False)
    leave = JobMessage.of(MessageKind.LEAVE, code=0)
    data = ready.encode() + leave.encode()
    assert reader.feed(data[:9]) == []
    assert reader.feed(data[9:]) == [ready, leave]


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b'{"kind":"ready"}\n',
        b'{"kind":"ready","generation":true,"stalled":0,"keeps":false}\n',
        b'{"kind":"ready","generation":1,"stalled":0,"keeps":0}\n',
        b'{"kind":"leave","code":0,"more":1}\n',
        b'{"kind":"shutdown"}\n',
        b"x" * 70_000,
        os.urandom(64).replace(b"\n", b"") + b"\n",
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(RendezvousError, match="rank 1 sent"):
        MessageReader("rank 1").feed(line)


def test_a_roster_is_told_to_programs_that_read_variables() -> None:
    roster = Roster(4, 1, 3, "unix:/x", num_new=0, syncs=True, hands_over=False)
    environment = {"KADRIL_RANK": "2", "HOROVOD_RANK": "2", "HOROVOD_LOCAL_SIZE": "4"}
    roster.write_to(environment)
    assert environment["KADRIL_RANK"] == environment["HOROVOD_RANK"] == "1"
    assert environment["HOROVOD_LOCAL_SIZE"] == environment["KADRIL_SIZE"] == "3"
    assert "HOROVOD_SIZE" not in environment  # only for programs of Horovod
    told = Identity("kadril run", 2, 4, listen_fd=5)
    identity = roster.identity(told)
    assert (identity.rank, identity.size, identity.generation) == (1, 3, 4)
    assert identity.listen_fd is None
