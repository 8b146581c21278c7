"""The life of the engine: starts and ends, what is in flight at an end, forks, interrupts, rest."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hvd_stage import (
    SHM,
    TRANSPORTS,
    check_works,
    on_ranks,
    on_shm,
    until,
    with_peers,
    with_peers_on_shm,
)

import kadril.torch as hvd
from kadril.engine.lane import TransportLane
from kadril.errors import ForkedError
from kadril.testing import ranks
from kadril.world import World


@ranks(1, 2, 3, transports=SHM)
def test_start_and_end_a_hundred_times(world: World) -> None:
    before = num_threads()
    for turn in range(100):
        hvd.init()
        assert hvd.is_initialized()
        if turn % 10 == world.rank:
            hvd.init()  # again is allowed
        result = hvd.allreduce(torch.full((3,), float(turn)), name="x", op=hvd.Sum)
        assert result.tolist() == [turn * world.size] * 3
        hvd.shutdown()
        assert not hvd.is_initialized()
    assert until(lambda: num_threads() <= before), f"{before} threads before, {num_threads()} after"


@ranks(2, 3, transports=("c10d", "mpi:openmpi"))
def test_start_and_end_on_other_transports(world: World) -> None:
    for turn in range(5):
        hvd.init()
        check_works(f"{turn}")
        hvd.shutdown()


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


@ranks(2, 3, transports=SHM)
def test_nothing_is_left_of_starts_and_ends(world: World) -> None:
    def num_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def cycle() -> None:
        hvd.init(process_sets="dynamic")
        chosen = hvd.add_process_set([0])
        if world.rank == 0:
            check_works("x", chosen)
        check_works("x")
        hvd.shutdown()

    cycle()
    before = num_descriptors()
    for _ in range(10):
        cycle()
    assert num_descriptors() <= before


@ranks(1, 2, 3, transports=TRANSPORTS)
def test_an_engine_that_nobody_ends_serves_the_next_body(world: World) -> None:
    hvd.init()
    check_works("left open")


@ranks(1, 2, 3, transports=TRANSPORTS)
def test_an_engine_that_was_left_open(world: World) -> None:
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
    assert (hvd.local_rank(), hvd.local_size()) == (world.local_rank, world.local_size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (world.cross_rank, world.cross_size)
    assert hvd.is_homogeneous() is (len(set(map(len, world.layout.hosts))) == 1)
    check_works("left open")
    hvd.shutdown()


@with_peers
def test_a_rank_may_leave_as_soon_as_its_own_ops_are_done(world: World) -> None:
    """One rank has its result before others have theirs; its leaving must not take theirs away."""
    for turn in range(5):
        count = 50_000 if world.transport.kind == "shm" else 500
        handles = [
            hvd.allreduce_async(torch.full((count,), float(i)), name=str(i), op=hvd.Sum)
            for i in range(5)
        ]
        for i, handle in enumerate(handles):
            assert hvd.synchronize(handle)[-1].item() == i * world.size, turn
        hvd.shutdown()
        hvd.init()


@with_peers
def test_ops_in_flight_at_the_end_fail(world: World) -> None:
    """Nobody will ever match these: shutdown does not wait for them, and who waits is told."""
    handles = [hvd.allreduce_async(torch.ones(2), name=f"only {world.rank}.{i}") for i in range(3)]
    # Who submits after another has left is refused; that is another test's story.
    world.transport.barrier()
    errors: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            hvd.synchronize(handles[0])
        except BaseException as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    started.wait()
    began = time.monotonic()
    hvd.shutdown()
    waiter.join(10.0)
    assert not waiter.is_alive(), "it still waits for an op of an engine that is gone"
    # Patience is 20 s here; an end that waited for anybody's would take longer than this.
    assert time.monotonic() - began < 10.0
    # The handle is void where the waiter came too late to see the end.
    for error in errors:
        assert isinstance(error, hvd.HorovodInternalError), repr(error)
    hvd.init()
    check_works("after")


@ranks(2, 3, transports=TRANSPORTS, timeout=45.0)
def test_ops_in_flight_at_many_ends(world: World) -> None:
    """Remains of groups that were given up must not meet those that are made later."""
    for turn in range(12 if world.transport.kind == "c10d" else 60):
        hvd.init()
        check_works("together")
        # Refused where another rank is the first to leave.
        with contextlib.suppress(hvd.HorovodInternalError):
            hvd.allreduce_async(torch.ones(2), name=f"only {world.rank}")
        hvd.shutdown()
        first, rest = hvd.ProcessSet([0]), hvd.ProcessSet(list(range(1, world.size)))
        hvd.init(process_sets=[first, rest])
        check_works(f"{turn}", first if world.rank == 0 else rest)
        check_works("together")
        hvd.shutdown()


@with_peers_on_shm
def test_who_waits_is_told_that_another_rank_has_left(world: World) -> None:
    if world.rank == 0:
        hvd.barrier()
        hvd.shutdown()
    else:
        handles = [hvd.allreduce_async(torch.ones(2), name=f"with rank 0: {i}") for i in range(3)]
        hvd.barrier()
        for handle in handles:
            with pytest.raises(hvd.HorovodInternalError):
                hvd.synchronize(handle)
        hvd.shutdown()
    hvd.init()
    check_works("after")


@with_peers_on_shm
def test_handles_of_an_earlier_engine_are_void(world: World) -> None:
    handle = hvd.allreduce_async(torch.ones(2), name=f"only {world.rank}")
    world.transport.barrier()
    hvd.shutdown()
    hvd.init()
    try:
        assert hvd.synchronize(handle) is None
    except hvd.HorovodInternalError as error:
        assert "shut" in str(error) or "closed" in str(error)  # noqa: PT017 - either is right
    check_works("after")


@on_shm
def test_memory_of_ops_that_were_given_up_is_not_written(world: World) -> None:
    tensor = torch.full((1000,), float(world.rank))
    if world.size > 1:
        hvd.allreduce_async_(tensor, name=f"only {world.rank}", op=hvd.Sum)
    world.transport.barrier()
    hvd.shutdown()
    hvd.init()
    check_works("after")
    assert tensor.unique().tolist() == [float(world.rank)]


def used_cpu() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def threads() -> set[str]:
    """Threads of this process, by their numbers."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def spent_by(numbers: set[str]) -> tuple[float, int]:
    """CPU seconds and voluntary context switches of threads."""
    cpu, switches = 0.0, 0
    for number in numbers:
        task = Path("/proc/self/task", number)
        cpu += int((task / "schedstat").read_text().split()[0]) / 1e9
        (line,) = re.findall(
            r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M
        )
        switches += int(line)
    return cpu, switches


@ranks(1, 2, 3, 4, transports=TRANSPORTS)
def test_rest_costs_nothing(world: World) -> None:
    """An engine that polled every millisecond would wake 300 times in this time.

    The process has other worlds, whose gloo groups wake every 10 ms, and more often where they get
    a core late; so only threads count that began with the engine. On c10d it has a gloo group of
    its own: 30 times.
    """
    world.transport.barrier()
    others = threads()
    hvd.init()
    check_works()
    hvd.barrier()
    own = threads() - others
    assert own, "the engine has no thread"
    before = spent_by(own)
    time.sleep(0.3)  # the time over which to measure, not something to wait for
    after = spent_by(own)
    hvd.shutdown()
    cpu, switches = after[0] - before[0], after[1] - before[1]
    limit = 60 if world.transport.kind == "c10d" else 10
    assert switches <= limit, f"{switches} wake-ups in 0.3 s"
    assert cpu < 0.015, f"{cpu * 1000:.1f} ms of CPU in 0.3 s"  # 5 %


@with_peers
def test_waiting_costs_little(world: World) -> None:
    """Rank 0 waits for an op of the others for half a second: it sleeps, it does not spin.

    The process has other worlds, whose gloo groups may be busy with ops that were abandoned; so
    what counts is the difference to a rest.
    """
    check_works()
    hvd.barrier()
    before = used_cpu()
    time.sleep(0.5)  # the time over which to measure, not something to wait for
    at_rest = used_cpu() - before
    hvd.barrier()
    before = used_cpu()
    if world.rank != 0:
        time.sleep(0.5)  # the time over which rank 0 is measured
    check_works("late")
    cpu = used_cpu() - before - at_rest
    if world.rank == 0:
        # On one host a doorbell rings. Elsewhere the engine may look now and then: a look costs
        # some 100 us, and a back-off that has grown looks less than 100 times in this time.
        limit = 0.025 if world.transport.kind == "shm" else 0.15
        assert cpu < limit, f"{cpu * 1000:.1f} ms of CPU in half a second"


def in_child(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises in a child made by fork."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork with threads, which is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(5)  # a child that hangs is ended by the system
        text = "nothing"
        try:
            call()
        except BaseException as error:
            text = type(error).__name__
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return text if os.waitpid(child, 0)[1] == 0 else "it hangs"


@with_peers
def test_a_child_made_by_fork_has_no_engine(world: World) -> None:
    """Each rank has an op under way that waits for the others, and forks meanwhile."""
    ones = torch.ones(2)
    waiting = hvd.allreduce_async(ones, name=f"of rank {world.rank}", op=hvd.Sum)
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: hvd.allreduce(ones, name="of the child"),
        "allreduce_async_": lambda: hvd.allreduce_async_(ones),
        "broadcast": lambda: hvd.broadcast(ones, 0),
        "synchronize": lambda: hvd.synchronize(waiting),
        "poll": lambda: hvd.poll(waiting),
        "barrier": hvd.barrier,
        "join": hvd.join,
        "rank": hvd.rank,
        "init": hvd.init,
    }
    raised = {name: in_child(call) for name, call in calls.items()}
    assert raised == dict.fromkeys(calls, ForkedError.__name__)
    # Before that no rank has asked for what others wait for, else that is done, and may be polled.
    world.transport.barrier()
    # The parents are unharmed, and so are the ops that were under way.
    handles = [waiting]
    for other in range(world.size):
        if other != world.rank:
            handles.append(hvd.allreduce_async(ones, name=f"of rank {other}", op=hvd.Sum))
    for handle in handles:
        assert hvd.synchronize(handle).tolist() == [world.size] * 2
    check_works()


@ranks(2, transports=("c10d", "mpi:openmpi"))
def test_the_engine_has_one_thread_state(world: World) -> None:
    """Making one takes a lock of the interpreter without the GIL, and did so in every cycle.

    A child made by fork() at that moment waited for that lock inside of fork().
    """
    hvd.init()
    place = threading.local()  # is gone with the state of its thread
    found = []
    gather = TransportLane.allgatherv

    def mark(*arguments: Any) -> None:
        found.append(hasattr(place, "mark"))
        place.mark = True
        gather(*arguments)

    TransportLane.allgatherv = mark  # type: ignore[method-assign]
    try:
        for turn in range(3):
            check_works(f"{turn}")
    finally:
        TransportLane.allgatherv = gather  # type: ignore[method-assign]
        hvd.shutdown()
    assert len(found) >= 3
    assert found == [False, *[True] * (len(found) - 1)]


@with_peers_on_shm
def test_a_worker_made_by_fork_comes_and_goes(world: World) -> None:
    """A child like a DataLoader's uses torch, not hvd, and ends by a normal exit."""

    def work() -> None:
        assert torch.arange(10).sum().item() == 45
        raise SystemExit(0)

    assert in_child(work) == "SystemExit"
    check_works()


@with_peers
def test_interrupted_in_synchronize(world: World) -> None:
    """Ctrl-C ends the wait, not the op: it is done when the others come, and can be waited for."""
    if world.rank != 0:
        hvd.barrier()
        check_works("interrupted")
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = hvd.allreduce_async(torch.ones(3), name="interrupted", op=hvd.Sum)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5.0
    hvd.barrier()
    assert hvd.synchronize(handle).tolist() == [world.size] * 3


@on_ranks(2, transports=SHM)
def test_a_real_sigint_in_a_blocking_op(world: World) -> None:
    if world.rank != 0:
        hvd.barrier()
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hvd.allreduce(torch.ones(2), name="nobody comes")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    hvd.barrier()


@on_shm
def test_submissions_from_a_thread_that_ends(world: World) -> None:
    handles: list[int] = []

    def submit() -> None:
        handles.append(hvd.allreduce_async(torch.ones(2), name="orphan", op=hvd.Sum))

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    assert hvd.synchronize(handles[0]).tolist() == [world.size] * 2
