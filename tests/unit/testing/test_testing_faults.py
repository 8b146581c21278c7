"""Disposable ranks: each outcome a test may ask about, produced by the real thing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from kadril.errors import StateError
from kadril.testing import Ranks, fault_points, no_leaks
from kadril.testing.faults import gate, mark
from kadril.testing.fork_client import close_fork_client, current_fork_client
from kadril.testing.process import state_of
from kadril.testing.starting import PoolError

# ---- what ranks do


def sum_of_ones(world: object, count: int = 1000) -> float:
    total = torch.ones(count)
    world.transport.allreduce(total)  # type: ignore[attr-defined]
    return float(total[0])


def sum_for_ever(world: object) -> None:
    mark("summing")
    while True:
        sum_of_ones(world)


def identify(rank: int, size: int, word: str) -> tuple[int, int, str, int, int]:
    return rank, size, word, os.getpid(), len(list(Path("/proc/self/task").iterdir()))


class Complaint(ValueError):  # noqa: N818
    """An error with fields, of a class that the session need not know."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} complains")
        self.rank = rank
        self.calls = {0: "barrier()", 1: "allreduce()"}
        self.lock = threading.Lock()


def complain(rank: int, size: int) -> None:
    raise Complaint(rank)


def end_somehow(rank: int, size: int) -> None:
    sys.stdout.write(f"rank {rank} was here\n")
    if rank == 0:
        sys.exit(3)
    if rank == 1:
        os._exit(4)
    if rank == 2:
        ctypes.string_at(0)
    os.abort()


def wait_at_gate(rank: int, size: int) -> float:
    mark("before")
    gate("open")
    return time.monotonic()


def hang_here(rank: int, size: int) -> None:
    mark("hanging")
    threading.Event().wait()


def raise_before_mark(rank: int, size: int) -> None:
    raise KeyError(rank)


# ---- outcomes


@pytest.mark.parametrize("transport", ["shm", "c10d"])
def test_a_world_of_disposable_ranks(transport: str) -> None:
    with no_leaks(), Ranks(3, transport=transport) as ranks:
        outcomes = ranks.start(sum_of_ones).wait()
        assert [outcome.value for outcome in outcomes] == [3.0] * 3
        assert all(outcome.alive and outcome.returned for outcome in outcomes)
        # They keep their world, and go on in it.
        assert [outcome.value for outcome in ranks.start(sum_of_ones, 1 << 20).wait()] == [3.0] * 3
        assert [outcome.exit_code for outcome in ranks.finish()] == [0, 0, 0]


def test_ranks_are_fresh_single_threaded_processes() -> None:
    with Ranks(2, transport=None) as ranks:
        outcomes = ranks.start(identify, "hello").wait()
        assert [outcome.value for outcome in outcomes] == [
            (rank, 2, "hello", outcomes[rank].pid, 1) for rank in range(2)
        ]
    with Ranks(2, transport=None) as ranks:
        others = ranks.start(identify, "hello").wait()
        assert not {outcome.pid for outcome in outcomes} & {outcome.pid for outcome in others}
    assert [state_of(outcome.pid) for outcome in others] == ["dead"] * 2


def test_errors_come_with_their_fields() -> None:
    with Ranks(1, transport=None) as ranks:
        (outcome,) = ranks.start(complain).wait()
        error = outcome.error
        assert error is not None
        assert (error.type, error.message) == ("Complaint", "rank 0 complains")
        assert error.bases[:2] == ("Complaint", "ValueError")
        assert error.fields == {"rank": 0, "calls": {0: "barrier()", 1: "allreduce()"}}
        assert "in complain" in error.traceback
        assert outcome.raised
        assert not outcome.returned
        assert outcome.alive  # so that no peer takes its end for a fault


def test_every_way_to_end() -> None:
    with Ranks(4, transport=None) as ranks:
        ranks.start(end_somehow)
        outcomes = ranks.wait()
    assert [outcome.exit_code for outcome in outcomes] == [3, 4, None, None]
    assert [outcome.signal for outcome in outcomes] == [None, None, signal.SIGSEGV, signal.SIGABRT]
    assert not any(outcome.alive or outcome.hung or outcome.returned for outcome in outcomes)
    assert outcomes[0].output == "rank 0 was here\n"
    assert "in string_at" in outcomes[2].output
    assert str(outcomes[2]) == "rank 2 was killed by SIGSEGV"


def test_a_hanging_rank_tells_where_it_is() -> None:
    with Ranks(2, transport=None) as ranks:
        outcomes = ranks.start(hang_here).wait(timeout=0.2)
        assert all(outcome.hung for outcome in outcomes)
        assert "in hang_here" in outcomes[0].stacks
        assert "in hang_here" in str(outcomes[1])


# ---- faults


def test_a_named_point_kills_and_survivors_say_who_died() -> None:
    with no_leaks(), Ranks(3) as ranks:
        ranks.fault(1, "allreduce.published:kill#2").start(sum_for_ever)
        outcomes = ranks.wait(5.0)
    assert outcomes[1].signal == signal.SIGKILL
    for survivor in (outcomes[0], outcomes[2]):
        assert survivor.error is not None
        assert survivor.error.type == "PeerLost"
        assert survivor.error.fields["rank"] == 1
        assert survivor.delay is not None
        assert 0 <= survivor.delay < 1.0
        assert survivor.exit_code == 0  # it could still close its world


def test_a_fault_at_opening() -> None:
    with Ranks(2, connect_timeout=5.0) as ranks:
        ranks.fault(1, "barrier.enter:kill", at_open=True).fault(0, "barrier.enter:kill")
        outcomes = ranks.start(meet).wait()
    assert [outcome.signal for outcome in outcomes] == [signal.SIGKILL] * 2


def meet(world: object) -> None:
    world.transport.barrier()  # type: ignore[attr-defined]


def test_points_are_those_of_the_native_core() -> None:
    points = fault_points()
    assert {point.partition(".")[0] for point in points} >= {"allreduce", "barrier", "exchange"}
    assert "allreduce.mid_copy" in points


def test_a_signal_at_a_mark() -> None:
    with Ranks(2) as ranks:
        ranks.start(sum_for_ever).wait_mark("summing").signal(0, signal.SIGKILL)
        killed_at = ranks.fault_time
        victim, survivor = ranks.wait(5.0)
        assert killed_at is not None
        assert victim.signal == signal.SIGKILL
        assert victim.ended is not None
        assert 0 <= victim.ended - killed_at < 1.0
        assert survivor.error is not None
        assert survivor.error.fields["rank"] == 0
        assert survivor.finished is not None
        assert survivor.delay == survivor.finished - killed_at
        with pytest.raises(StateError, match=r"rank 0 has no process.*killed by SIGKILL"):
            ranks.signal(0, signal.SIGKILL)


def test_a_stopped_rank_is_not_waited_for() -> None:
    with Ranks(2, patience=0.3) as ranks:
        ranks.start(sum_for_ever).wait_mark("summing").signal(1, signal.SIGSTOP)
        other, stopped = ranks.wait(5.0)
        assert other.error is not None
        assert (other.error.type, other.error.fields["state"]) == ("Stalled", "stopped")
        assert other.delay is not None
        assert 0.3 <= other.delay < 1.5
        assert stopped.stopped
        assert stopped.alive
        assert not stopped.hung
    assert state_of(stopped.pid) == "dead"


def test_a_stop_and_a_continue_pass_unnoticed() -> None:
    with Ranks(2, transport=None) as ranks:
        ranks.start(wait_at_gate).wait_mark("open").signal(0, signal.SIGSTOP)
        assert state_of(ranks.outcomes[0].pid) == "stopped"
        ranks.signal(0, signal.SIGCONT).open_gate("open")
        assert all(outcome.returned and not outcome.stopped for outcome in ranks.wait(5.0))


# ---- marks and gates


def test_gates_order_what_ranks_and_test_do() -> None:
    with Ranks(2, transport=None) as ranks:
        ranks.start(wait_at_gate).wait_mark("open")
        assert [outcome.marks for outcome in ranks.outcomes] == [["before", "open"]] * 2
        opened_at = time.monotonic()
        outcomes = ranks.open_gate("open").wait()
        assert all(outcome.value >= opened_at for outcome in outcomes)


def test_a_mark_that_is_never_reached() -> None:
    with Ranks(1, transport=None) as ranks:
        ranks.start(raise_before_mark)
        with pytest.raises(StateError, match="never at mark 'there':\nrank 0 raised KeyError: 0"):
            ranks.wait_mark("there")
    with Ranks(1, transport=None) as ranks:
        ranks.start(hang_here)
        with pytest.raises(
            TimeoutError, match=r"'there' within 0\.2 s:\nrank 0 hangs:(.|\n)*hang_here"
        ):
            ranks.wait_mark("there", timeout=0.2)


def test_marks_are_for_ranks() -> None:
    for call in (mark, gate):
        with pytest.raises(StateError, match=r"functions that kadril\.testing\.Ranks has started"):
            call("here")


# ---- the process that forks


def test_a_round_is_cheap() -> None:
    """The fault matrix has hundreds of rounds: a torch import each, seconds, would be too slow."""
    current_fork_client()
    times = []
    for _ in range(5):
        started = time.monotonic()
        with Ranks(3) as ranks:
            assert all(outcome.returned for outcome in ranks.start(sum_of_ones).wait())
        times.append(time.monotonic() - started)
    assert min(times) < 1.5  # some 0.1 s on an idle machine, where three imports take 4 s


def start_and_raise(pids: list[int]) -> None:
    with Ranks(2, transport=None) as ranks:
        ranks.start(hang_here).wait_mark("hanging")
        pids += [outcome.pid for outcome in ranks.outcomes]
        raise KeyError


def test_an_error_in_the_test_kills_the_ranks() -> None:
    pids: list[int] = []
    with no_leaks(), pytest.raises(KeyError):
        start_and_raise(pids)
    assert [state_of(pid) for pid in pids] == ["dead"] * 2


THREADED = """
import threading
forgotten = threading.Event()
threading.Thread(target=forgotten.wait, daemon=True).start()
def body(rank, size): ...
"""


def test_a_module_that_starts_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork copies one thread and the locks that the others hold."""
    (tmp_path / "test_threaded.py").write_text(THREADED)
    monkeypatch.syspath_prepend(tmp_path)
    import test_threaded  # type: ignore[import-not-found]

    try:
        with (
            Ranks(1, transport=None) as ranks,
            pytest.raises(PoolError, match="has started threads"),
        ):
            ranks.start(test_threaded.body)
    finally:
        test_threaded.forgotten.set()
        close_fork_client()  # that module is loaded there for good


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    first = current_fork_client()
    with no_leaks(), Ranks(1, transport=None) as ranks:
        ranks.start(hang_here).wait_mark("hanging")
        first.process.kill()
        with pytest.raises(PoolError, match="is gone"):
            ranks.wait()
    with Ranks(1, transport=None) as ranks:
        assert ranks.fork_client is not first
        assert ranks.start(identify, "again").wait()[0].returned
