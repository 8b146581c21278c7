"""A rank dies, stops or is late while others have ops in flight."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path

import hvd_victims
import pytest
import torch
from hvd_stage import SHM, check_works, on_ranks, until

import kadril.torch as hvd
from kadril.errors import PeerError, Stalled
from kadril.testing import Ranks
from kadril.transport.base import Transport
from kadril.world import World

BOUND = 1.0  # seconds from a death to the errors of all survivors


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("transport", ["shm", "c10d"])
def test_death_fails_all_that_is_pending(transport: str, victim: int) -> None:
    with Ranks(3, transport=transport, patience=20.0) as ranks:
        ranks.start(hvd_victims.wait_for_the_victim, victim)
        ranks.wait_mark("waiting", ranks=[rank for rank in range(3) if rank != victim])
        ranks.signal(victim, signal.SIGKILL)
        for outcome in ranks.wait(30.0):
            if outcome.rank != victim:
                assert outcome.returned, str(outcome)
                assert outcome.value == [("PeerLost", victim)] * 12, str(outcome)
                assert outcome.delay is not None
                assert outcome.delay < BOUND, str(outcome)


@pytest.mark.parametrize("seed", range(4))
def test_death_at_any_time(seed: int) -> None:
    victim = seed % 3
    with Ranks(3, patience=20.0) as ranks:
        ranks.start(hvd_victims.work_without_end).wait_mark("running")
        # The time of the fault is what varies; nothing waits for this sleep to be long enough.
        time.sleep(0.004 * seed)
        ranks.signal(victim, signal.SIGKILL)
        for outcome in ranks.wait(30.0):
            if outcome.rank != victim:
                assert outcome.error is not None, str(outcome)
                assert outcome.error.type == "PeerLost", str(outcome)
                assert outcome.error.fields["rank"] == victim, str(outcome)
                assert outcome.delay is not None
                assert outcome.delay < BOUND, str(outcome)


@pytest.mark.parametrize("transport", ["shm", "c10d"])
def test_a_program_ends_with_ops_in_flight(transport: str) -> None:
    """The program forgets shutdown(), and ops that nobody will match: it ends as if it had not."""
    with Ranks(2, transport=transport, patience=60.0) as ranks:
        outcomes = ranks.start(hvd_victims.exit_with_ops_in_flight).wait(15.0)
        assert [outcome.exit_code for outcome in outcomes] == [3, 3], [str(x) for x in outcomes]
        assert "Traceback" not in "".join(outcome.output for outcome in outcomes)


def test_death_while_others_wait_in_join() -> None:
    with Ranks(3, patience=20.0) as ranks:
        ranks.start(hvd_victims.join_with_a_victim, 1).wait_mark("running")
        ranks.signal(1, signal.SIGKILL)
        outcomes = ranks.wait(30.0)
        assert [outcomes[rank].value for rank in (0, 2)] == [("PeerLost", 1)] * 2, outcomes


@pytest.mark.parametrize("transport", ["shm", "c10d"])
def test_a_set_with_a_stopped_rank_holds_up_no_other(transport: str) -> None:
    """Rank 1 is stopped anywhere in its work with rank 0, which goes on with rank 2."""
    with Ranks(3, transport=transport, patience=60.0, stall_warning=30.0) as ranks:
        ranks.start(hvd_victims.two_sets, 50).wait_mark("running")
        ranks.wait_mark("go", ranks=[0, 2])
        ranks.signal(1, signal.SIGSTOP)
        ranks.open_gate("go")
        ranks.wait_mark("progress", ranks=[0, 2], timeout=15.0)
        ranks.signal(1, signal.SIGCONT)
        ranks.wait_mark("end", ranks=[0, 2])
        ranks.open_gate("end")
        assert [outcome.value for outcome in ranks.wait(30.0)] == [50] * 3


class Records(logging.Handler):
    """Keeps what the logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Records:
        logging.getLogger("kadril").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("kadril").removeHandler(self)


@on_ranks(3, transports=("shm", "c10d", "mpi:openmpi"), patience=1.5, stall_warning=0.3)
def test_a_late_rank_is_reported_and_then_given_up(world: World, tmp_path: Path) -> None:
    """Both that wait are told at once, when the first of them has waited for its patience.

    The other may have asked some microseconds later, and has then waited for less.
    """
    check_works("start")
    notes = [tmp_path / "0", tmp_path / "2"]
    if world.rank == 1:
        # Late, not gone.
        assert until(lambda: all(note.exists() for note in notes))
        waits = [float(note.read_text()) for note in notes]
        assert max(waits) >= 1.5, waits
        return
    note = tmp_path / str(world.rank)
    elapsed = -1.0
    try:
        elapsed = check_given_up(world.transport)
    finally:
        # Whole or not there: the late rank reads it as soon as it is.
        half = note.with_suffix(".half")
        half.write_text(repr(elapsed))
        half.rename(note)


def check_given_up(transport: Transport) -> float:
    """Check the report and the error of a rank that waits for rank 1; return how long it waited."""
    with Records() as records, pytest.raises(Stalled) as caught:
        hvd.allreduce(torch.ones(2), name="grad.7")
    reports = [text for text in records.texts if "grad.7" in text]
    # Where there are hosts with shared memory, the first rank of each tells of those on others.
    is_told = transport.host_memory is transport.shared_memory or hvd.local_rank() == 0
    assert reports or not is_told, records.texts
    for report in reports[:1]:
        assert "rank" in report
        assert "1" in report
        # Since when, and from where.
        assert any(character.isdigit() for character in report.partition("grad.7")[2])
        assert "test_hvd_faults.py" in report
    error = caught.value
    assert (error.rank, error.name, error.state) == (1, "grad.7", "late")
    assert 0.0 < error.elapsed < 6.0
    assert "allreduce" in error.operation
    with pytest.raises(PeerError):  # and stays so, without another wait
        hvd.allreduce(torch.ones(2), name="next")
    return error.elapsed


@on_ranks(2, 3, timeout=20.0, patience=1.0, stall_warning=0.3)
def test_ranks_that_poll_for_different_names(world: World) -> None:
    """Everybody is there and nobody is late for anything but what the others ask for.

    They could still ask for it, so patience decides. All are told, with the names of both sides;
    nobody blames itself; and a new engine works.
    """
    with Records() as records:
        handle = hvd.allreduce_async(torch.ones(2), name=f"only rank {world.rank}")
        assert until(lambda: hvd.poll(handle))
    with pytest.raises(PeerError) as caught:
        hvd.synchronize(handle)
    # Over a network, who is told a moment later may find a peer gone that was told before.
    assert isinstance(caught.value, Stalled) or world.transport.shared_memory is None
    assert caught.value.rank in set(range(world.size)) - {world.rank}
    assert caught.value.name == f"only rank {world.rank}"
    for rank in range(world.size):
        assert any(f"only rank {rank}" in text for text in records.texts), records.texts
    with pytest.raises(PeerError) as again:
        hvd.allreduce(torch.ones(2), name="next")
    assert again.value.rank != world.rank
    # A rank that was told a moment later would find the others gone, and say that.
    world.transport.barrier()
    hvd.shutdown()
    hvd.init()
    check_works("with a new engine")


@on_ranks(2, 3, transports=SHM, patience=20.0, stall_warning=0.2)
def test_a_rank_that_is_late_but_comes(world: World) -> None:
    """A late rank is reported, by name, to those who wait; and then the op goes well."""
    late = world.size - 1
    with Records() as records:
        if world.rank == late:
            check_works("meanwhile 0")
            # Not before rank 0 says that it has seen the report.
            hvd.broadcast(torch.ones(1), 0, name="seen")
            check_works("waited for")
        else:
            handle = hvd.allreduce_async(torch.ones(3), name="waited for", op=hvd.Sum)
            check_works("meanwhile 0")
            assert until(lambda: any("waited for" in text for text in records.texts))
            hvd.broadcast(torch.ones(1), 0, name="seen")
            assert hvd.synchronize(handle).tolist() == [world.size] * 3


@on_ranks(3, transports=SHM, patience=20.0, stall_warning=0.2)
def test_a_report_names_all_who_are_missing(world: World) -> None:
    if world.rank == 0:
        with Records() as records:
            handles = [hvd.allreduce_async(torch.ones(1), name=f"late.{i}") for i in range(3)]
            assert until(
                lambda: all(any(f"late.{i}" in text for text in records.texts) for i in range(3))
            ), records.texts
        text = next(text for text in records.texts if "late.1" in text)
        assert "1, 2" in text, text
        hvd.barrier()
    else:
        hvd.barrier()
        handles = [hvd.allreduce_async(torch.ones(1), name=f"late.{i}") for i in range(3)]
    for handle in handles:
        assert hvd.synchronize(handle).tolist() == [1.0]
