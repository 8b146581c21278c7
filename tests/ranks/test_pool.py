"""The standing pool of ranks: what it runs, and that no test can spoil it for the next."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kadril.errors import Stalled
from kadril.testing import RankPool, RanksFailed, no_leaks, ranks, run_on_ranks
from kadril.testing.fork_client import close_fork_client
from kadril.testing.mpi_worker_pool import Unavailable
from kadril.testing.process import state_of
from kadril.testing.rendezvous import FALLBACK, sweep_directories
from kadril.testing.starting import PoolError
from kadril.testing.worker import SECRET_NAME
from kadril.world import World

ALL_TRANSPORTS = ("shm", "c10d", "mpi:openmpi", "mpi:mpich")


@dataclasses.dataclass(frozen=True)
class Payload:
    """A class of the test module: it travels in arguments and in results."""

    content: int


def pid_of(world: World) -> int:
    return os.getpid()


# ---- tests on ranks, as a user writes them


@ranks(1, 2, 4, transports=ALL_TRANSPORTS)
@pytest.mark.parametrize("count", [0, 5])
def test_every_rank_runs_the_body(world: World, count: int) -> None:
    total = torch.full((count,), world.rank + 1)
    world.transport.allreduce(total)
    assert total.tolist() == [sum(range(1, world.size + 1))] * count


@ranks(2, transports=ALL_TRANSPORTS)
def test_the_world_is_the_one_that_was_asked_for(world: World) -> None:
    assert world.size == 2
    assert world.local_size == 2
    assert world.transport.world_ranks == (0, 1)


@ranks(2, transports=("shm", "c10d"))
def test_the_transport_is_the_one_that_was_asked_for(
    world: World, request_free_name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{world.transport.kind}-{world.rank}").touch()
    world.transport.barrier()
    assert request_free_name in ("shm", "c10d")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{request_free_name}-0", f"{request_free_name}-1"]


@pytest.fixture
def request_free_name(request: pytest.FixtureRequest) -> str:
    """A fixture is made in the session, where it may look at anything; ranks get its value."""
    return "c10d" if "c10d" in request.node.name else "shm"


class TestInAClass:
    """A method runs on a fresh instance in every rank."""

    answer = 42

    @ranks(2)
    def test_a_method_can_run_on_ranks(self, world: World) -> None:
        assert self.answer == 42
        assert world.size == 2


@ranks(2, patience=0.2)
def test_a_world_can_have_options_of_its_own(world: World) -> None:
    if world.rank == 0:
        with pytest.raises(Stalled):
            world.transport.barrier()


# ---- functions called from an ordinary test


def double(world: World, payload: Payload) -> tuple[int, Payload]:
    return world.rank, Payload(2 * payload.content)


def test_results_come_back_by_rank(rank_pool: RankPool) -> None:
    assert rank_pool.run(3, double, Payload(4)) == [(rank, Payload(8)) for rank in range(3)]
    assert run_on_ranks(1, double, Payload(1), transport="c10d") == [(0, Payload(2))]


def gather_lists(world: World, counts: list[int]) -> list[int]:
    ours = torch.full((counts[world.rank],), world.rank)
    everyones = torch.empty(sum(counts), dtype=torch.int64)
    world.transport.allgatherv(ours, everyones, counts)
    result: list[int] = everyones.tolist()
    return result


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_hypothesis_searches_in_the_session(rank_pool: RankPool, counts: list[int]) -> None:
    expected = [rank for rank, count in enumerate(counts) for _ in range(count)]
    assert rank_pool.run(3, gather_lists, counts) == [expected] * 3


def test_ranks_stand_ready(rank_pool: RankPool) -> None:
    """The same processes serve worlds of any size and transport."""
    pids = rank_pool.run(3, pid_of)
    assert rank_pool.run(2, pid_of) == pids[:2]
    assert rank_pool.run(3, pid_of, transport="c10d") == pids
    started = time.monotonic()
    for _ in range(20):
        rank_pool.run(2, pid_of)
    assert (
        time.monotonic() - started
    ) / 20 < 0.1  # a few milliseconds, with room for a busy machine


# ---- failures


def fail_alike(world: World) -> None:
    here = world.size
    assert here == 5


def test_failures_of_all_ranks_are_told_once(rank_pool: RankPool) -> None:
    with pytest.raises(RanksFailed) as caught:
        rank_pool.run(3, fail_alike)
    text = str(caught.value)
    assert text.startswith("ranks 0, 1, 2: AssertionError: assert 3 == 5\n")
    assert text.count("in fail_alike") == 1
    assert "kadril/testing" not in text  # the traceback begins in the test


def fail_alone(world: World) -> None:
    if world.rank == 1:
        raise KeyError("only here")
    world.transport.barrier()


@pytest.mark.parametrize("transport", ["shm", "c10d"])
def test_who_waits_for_a_failed_rank_is_let_go(rank_pool: RankPool, transport: str) -> None:
    """Long before the patience of the world, 20 s, is over; and the cause is told first."""
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1: KeyError: 'only here'") as caught:
        rank_pool.run(2, fail_alone, transport=transport)
    assert time.monotonic() - started < 10
    assert str(caught.value).startswith("rank 1: KeyError")
    assert caught.value.reports[0].kind in ("Revoked", "PeerLost", "TransportError")
    assert rank_pool.run(2, gather_lists, [1, 1], transport=transport) == [[0, 1], [0, 1]]


def skip_on(world: World, skippers: list[int]) -> None:
    if world.rank in skippers:
        pytest.skip("not today")


def test_all_ranks_or_none_skip(rank_pool: RankPool) -> None:
    with pytest.raises(pytest.skip.Exception, match="not today"):
        rank_pool.run(2, skip_on, [0, 1])
    with pytest.raises(RanksFailed, match=r"rank 0: passed\n\nrank 1: skipped \(not today\)"):
        rank_pool.run(2, skip_on, [1])


def xfail(world: World) -> None:
    pytest.xfail("known")


def test_ranks_can_say_that_they_fail_as_expected(rank_pool: RankPool) -> None:
    with pytest.raises(pytest.xfail.Exception, match="known"):
        rank_pool.run(2, xfail)


def warn(world: World) -> None:
    warnings.warn("careful", UserWarning, stacklevel=1)


def test_warnings_are_treated_as_in_the_session(rank_pool: RankPool) -> None:
    with pytest.raises(RanksFailed, match="UserWarning: careful"):
        rank_pool.run(1, warn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rank_pool.run(1, warn)


def return_a_lock(world: World) -> object:
    return threading.Lock()


def test_what_cannot_travel_is_named(rank_pool: RankPool) -> None:
    with pytest.raises(TypeError, match="argument '0' of type lock cannot be sent"):
        rank_pool.run(1, double, threading.Lock())
    with pytest.raises(TypeError, match="top level of a module"):
        rank_pool.run(1, lambda world: None)
    with pytest.raises(RanksFailed, match=r"cannot pickle '_thread\.lock'"):
        rank_pool.run(1, return_a_lock)


def leave_out_of_step(world: World) -> None:
    """Rank 0 makes a call that nobody else makes, from a thread, and returns without it."""
    if world.rank == 0:
        call = functools.partial(world.transport.barrier, name="extra")
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        wait_until_it_sleeps(thread)


def wait_until_it_sleeps(thread: threading.Thread) -> None:
    """Wait until a thread waits for something other than the interpreter's lock.

    Seen: the thread had not come as far as its call when the pool's own barrier began. The lock is
    free during the reads below, so a thread that only wants that is running in one of them.
    """
    asleep = 0
    while asleep < 5:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        asleep = asleep + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.001)


def test_a_test_that_leaves_ranks_out_of_step_fails_itself(rank_pool: RankPool) -> None:
    """Otherwise the next test of that world would fail for it."""
    with pytest.raises(RanksFailed, match=r"barrier\(name='extra'\)") as caught:
        rank_pool.run(2, leave_out_of_step)
    for report in caught.value.reports.values():
        assert report.summary.startswith("the test left its ranks out of step")
    assert rank_pool.run(2, gather_lists, [1, 1]) == [[0, 1], [0, 1]]


def close_world(world: World) -> bool:
    world.transport.barrier()
    world.close()
    return world.is_closed


@pytest.mark.parametrize("size", [1, 2])
def test_a_test_may_close_its_world(rank_pool: RankPool, size: int) -> None:
    for _ in range(2):
        assert rank_pool.run(size, close_world) == [True] * size


def count_open_worlds(world: World) -> int:
    gc.collect()
    return sum(type(thing) is World and not thing.is_closed for thing in gc.get_objects())


def test_worlds_that_were_not_used_for_long_are_closed(rank_pool: RankPool) -> None:
    for number in range(12):
        (count,) = rank_pool.run(1, count_open_worlds, stall_warning=100.0 + number)
    assert count <= 8
    assert rank_pool.run(1, count_open_worlds, stall_warning=100.0) == [count]


# ---- processes that are lost


def be_lost(world: World) -> None:
    if world.rank == 0:
        sleep_for_ever()
    if world.rank == 1:
        sys.stdout.write("these were my last words\n")
        sys.stdout.flush()
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep_for_ever() -> None:
    threading.Event().wait()


def test_lost_ranks_are_described_and_replaced(rank_pool: RankPool) -> None:
    before = rank_pool.run(4, pid_of)
    with pytest.raises(RanksFailed) as caught:
        rank_pool.run(3, be_lost, timeout=2.0)
    hung, died, stopped = (caught.value.reports[rank] for rank in range(3))
    assert (hung.fate, died.fate, stopped.fate) == ("hung", "died", "hung")
    assert "in sleep_for_ever" in hung.text
    assert died.summary == "the process was killed by SIGSEGV"
    assert "these were my last words" in died.text
    assert "in string_at" in died.text  # where it died, by faulthandler
    assert "(the process is stopped)" in stopped.text
    assert [state_of(pid) for pid in before[:3]] == ["dead"] * 3
    after = rank_pool.run(4, pid_of)
    assert not set(before[:3]) & set(after)
    assert after[3] == before[3]


class Interrupted(Exception):  # noqa: N818
    """Stand-in for a timeout of pytest, or Ctrl-C, as the pool sees it."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    def interrupted(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupted)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def wait_in_vain(world: World) -> None:
    sleep_for_ever()


def test_an_interrupted_test_takes_its_ranks_with_it(
    rank_pool: RankPool, interrupt: Callable[[float], None]
) -> None:
    """Such ranks would answer one day, when the session has long been asking something else."""
    (before,) = rank_pool.run(1, pid_of)
    interrupt(0.2)
    with pytest.raises(Interrupted):
        rank_pool.run(1, wait_in_vain)
    assert state_of(before) == "dead"
    assert rank_pool.run(1, gather_lists, [2]) == [[0, 0]]


def test_a_pool_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", os.fspath(program))
    close_fork_client()
    pool = RankPool()
    with no_leaks():
        with pytest.raises(PoolError, match="the process that forks ranks is gone"):
            pool.run(1, pid_of)
        pool.close()
    assert capfd.readouterr().out == "no such luck\n"


def test_a_rank_that_cannot_start_says_why() -> None:
    pool = RankPool()
    pool.worker_pool("shm").directory.joinpath(SECRET_NAME).unlink()
    with pytest.raises(PoolError, match=r"(?s)rank 0 .* exited with code 1 while .*No such file"):
        pool.run(1, pid_of)
    pool.close()


def test_a_closed_pool_leaves_nothing() -> None:
    with no_leaks():
        pool = RankPool()
        (pid,) = pool.run(1, pid_of)
        pool.close()
        assert state_of(pid) == "dead"


SESSION = """
    import os, sys, time
    from kadril.testing import Ranks, run_on_ranks

    if __name__ == "__main__":
        sys.path.insert(0, os.path.dirname(__file__))
        import lone_session
        pids = run_on_ranks(1, lone_session.pid)
        with Ranks(1, transport=None) as ranks:
            ranks.start(lone_session.pause).wait_mark("there")
            print(*pids, ranks.outcomes[0].pid, ranks.fork_client.process.pid, flush=True)
            time.sleep(60)

    def pid(world):
        return os.getpid()

    def pause(rank, size):
        from kadril.testing.faults import mark
        mark("there")
        time.sleep(60)
"""


def test_ranks_do_not_outlive_a_killed_session(tmp_path: Path) -> None:
    """The next session removes the directories of a killed one."""
    script = tmp_path / "lone_session.py"
    script.write_text(textwrap.dedent(SESSION))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, os.fspath(script)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        pids = [int(word) for word in session.stdout.readline().split()]
        assert len(pids) == 3
        assert "dead" not in [state_of(pid) for pid in pids]
        session.kill()
    deadline = time.monotonic() + 10
    while any(state_of(pid) != "dead" for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [state_of(pid) for pid in pids] == ["dead"] * 3
    left = set(FALLBACK.glob(f"kadril-*-{session.pid}-*"))
    sweep_directories.__wrapped__()
    assert not any(path.exists() for path in left)


def die_under_mpi(world: World) -> None:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.transport.barrier()


@pytest.fixture
def small_jobs(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """A pool of its own, so that nothing that is done to it has to be undone."""
    with no_leaks():
        pool = RankPool(root=request.config.rootpath, mpi_job_size=2)
        yield pool
        pool.close()


@pytest.mark.long
@pytest.mark.parametrize("transport", ["mpi:openmpi", "mpi:mpich"])
def test_an_mpi_job_that_lost_a_rank_is_started_again(small_jobs: RankPool, transport: str) -> None:
    try:
        small_jobs.worker_pool(transport)
    except Unavailable as error:
        pytest.skip(str(error))
    with pytest.raises(RanksFailed, match="is gone, and its MPI job exited with code") as caught:
        small_jobs.run(2, die_under_mpi, transport=transport)
    assert caught.value.reports[1].fate == "died"
    assert small_jobs.run(2, gather_lists, [1, 2], transport=transport) == [[0, 1, 1]] * 2
