"""F13, F15: a rank that runs out of memory, descriptors or threads; what the others hear of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import work
from fault_clock import check_delays, note_fault

import kadril.torch as hvd
from kadril.testing import Ranks, faults, no_leaks
from kadril.testing.outcome import Outcome
from kadril.world import World
from kadril.world.connector import Connector

BOUND = 1.0  # seconds from the fault to the exception on every survivor

LARGE = 4 << 20  # elements: more memory than `hold_memory_down` leaves


def hold_memory_down(num_bytes: int = 4 << 20) -> None:
    """Let this process have only some bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def check_survivors(outcomes: list[Outcome], victim: int, kinds: set[str]) -> None:
    """Each survivor names the victim, in time."""
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.error is not None, outcome
            assert outcome.error.type in kinds, outcome
            assert outcome.error.fields["rank"] == victim, outcome
    check_delays(outcomes, BOUND)


def reduce_without_memory(world: World) -> tuple[float, float]:
    array = torch.ones(LARGE)
    world.transport.barrier()
    if world.rank == 1:
        note_fault()
        hold_memory_down()
    world.transport.allreduce(array)
    return float(array.min()), float(array.max())


def test_no_memory_inside_a_call_over_connections() -> None:
    """F13: gloo lets the others wait for their whole timeout."""
    with no_leaks(), Ranks(3, transport="tcp", patience=60.0) as ranks:
        outcomes = ranks.start(reduce_without_memory).wait(30.0)
        assert outcomes[1].error is not None
        assert "MemoryError" in outcomes[1].error.bases
        check_survivors(outcomes, 1, {"Revoked"})
        assert outcomes[0].error is not None
        assert "MemoryError in allreduce" in outcomes[0].error.message


def test_collectives_of_shared_memory_need_no_memory() -> None:
    """F13: staging memory is there since the world was opened."""
    with Ranks(3, patience=60.0) as ranks:
        outcomes = ranks.start(reduce_without_memory).wait(30.0)
        assert [outcome.value for outcome in outcomes] == [(3.0, 3.0)] * 3


def run_out_between_calls(world: World) -> None:
    world.transport.barrier()
    if world.rank == 1:
        note_fault()
        hold_memory_down()
        try:
            torch.empty(16 * LARGE)
        except RuntimeError:  # as an exception that nobody catches ends a program
            raise SystemExit(1) from None
    for _ in range(work.MAX_CALLS):
        world.transport.allreduce(torch.ones(10))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_error_between_calls_is_known_to_the_others(transport: str) -> None:
    """F06, F13: a rank whose program ends in an error does not let the others wait."""
    with no_leaks(), Ranks(3, transport=transport, patience=60.0) as ranks:
        outcomes = ranks.start(run_out_between_calls).wait(30.0)
        assert outcomes[1].exit_code == 1
        check_survivors(outcomes, 1, {"PeerLost"})


def fail_in_split(world: World) -> None:
    world.transport.barrier()
    if world.rank == 1:

        def fail(*_: object) -> None:
            raise MemoryError

        Connector.dial = fail  # type: ignore[assignment, method-assign]
        note_fault()
    world.transport.split(0)


def test_no_memory_while_a_group_is_made() -> None:
    """Seen: one rank had no memory in split(), and another waited 30 s for its connection."""
    with Ranks(3, transport="tcp", patience=60.0) as ranks:
        outcomes = ranks.start(fail_in_split).wait(20.0)
        assert outcomes[1].error is not None
        assert outcomes[1].error.type == "MemoryError"
        check_survivors(outcomes, 1, {"Revoked"})


def start_an_engine(world: World, limit: str) -> float:
    world.transport.barrier()
    if world.rank == 1:
        note_fault()
        if limit == "threads":
            os.setresuid(65534, 65534, 65534)  # root has no such limit
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        else:
            hold_memory_down(1 << 20)
    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="first"))


@pytest.mark.parametrize("limit", ["threads", "memory"])
def test_an_engine_without_its_thread(limit: str) -> None:
    """F15: it said "Resource temporarily unavailable", and not of what."""
    if limit == "threads" and os.geteuid() != 0:
        pytest.skip("only root can become another user, who has no process yet")
    with Ranks(2, patience=60.0) as ranks:
        outcomes = ranks.start(start_an_engine, limit).wait(30.0)
        error = outcomes[1].error
        assert error is not None
        assert error.type == "NoRoomError"
        assert "thread of the engine could not be started" in error.message
        assert "ulimit -u" in error.message
        check_survivors(outcomes, 1, {"PeerLost"})


def make_groups(world: World) -> int:
    world.transport.barrier()
    num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open, num_open))
    for _ in range(50):
        group = world.transport.split(0)
        assert group is not None
        x = torch.ones(3)
        group.allreduce(x)
        assert x.tolist() == [2.0] * 3
    return 50


def test_groups_of_shared_memory_need_no_descriptor() -> None:
    with Ranks(2, patience=60.0) as ranks:
        assert [each.value for each in ranks.start(make_groups).wait(30.0)] == [50, 50]


def test_groups_of_connections_name_the_limit() -> None:
    with Ranks(2, transport="tcp", patience=60.0, connect_timeout=2.0) as ranks:
        for outcome in ranks.start(make_groups).wait(30.0):
            assert outcome.error is not None, outcome
        told = " ".join(each.error.message for each in ranks.outcomes if each.error)
        assert "Too many open files" in told or "ulimit -n" in told


JOIN = """
import os, resource, sys
limit = len(os.listdir("/proc/self/fd")) + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import kadril
kadril.init()
"""


@pytest.mark.parametrize(
    "spare", [pytest.param(0, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)]
)
def test_too_few_descriptors_to_join(spare: int, tmp_path: Path) -> None:
    """Seen with 2: rank 0 dropped a rank to make room for nobody, which it told of its secret."""
    program = tmp_path / "join.py"
    program.write_text(JOIN)
    command = [sys.executable, "-m", "kadril", "run", "-np", "2", str(program), str(spare)]
    environment = {**os.environ, "KADRIL_CONNECT_TIMEOUT": "10"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ulimit -n" in done.stderr or "Too many open files" in done.stderr
    assert "did not accept the proof" not in done.stderr


MEMORY_GROUP = Path("/sys/fs/cgroup/memory")


def eat_memory(world: World) -> None:
    world.transport.barrier()
    if world.rank == 1:
        faults.gate("in the group")
        eaten = []
        while True:
            eaten.append(bytearray(b"x" * (8 << 20)))
    for _ in range(10**9):
        world.transport.allreduce(torch.ones(10))


@pytest.mark.faults
def test_a_rank_killed_by_the_limit_of_its_group() -> None:
    """F13: the kernel kills what goes beyond the memory of its control group."""
    group = MEMORY_GROUP / f"kadril-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    try:
        with Ranks(3, patience=60.0) as ranks:
            ranks.start(eat_memory).wait_mark("in the group", ranks=[1])
            (group / "cgroup.procs").write_text(str(ranks.outcomes[1].pid))
            ranks.open_gate("in the group")
            outcomes = ranks.wait(60.0)
            assert outcomes[1].signal == signal.SIGKILL
            for rank in (0, 2):
                assert outcomes[rank].error is not None
                assert outcomes[rank].error.type == "PeerLost"
                assert outcomes[rank].error.fields["rank"] == 1
                assert outcomes[rank].delay is not None
                assert outcomes[rank].delay < BOUND
    finally:
        with suppress(OSError):
            group.rmdir()
