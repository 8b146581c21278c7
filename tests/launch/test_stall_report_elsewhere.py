"""A job that does not move is told of under launchers that are not ours: mpirun, torchrun.

Nothing was told there: the ranks had no record, and `kadril mpirun` had become the mpirun.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from launch_playground import Launched, Playground, eventually
from test_stall_report import kadril

from kadril.observe.process_tree import command_name
from kadril.testing.mpi_worker_pool import (
    OPENMPI_DIRECTORY,
    Mpi,
    Unavailable,
    find_mpi,
    mapped_segments,
)

# Ranks 0 and 1 meet; the last one does something else for ever. What ranks print is captured, and
# rank 0 has a child, as a data loader would make it.
LATE = """
    import os, sys, time
    import numpy as np
    import kadril
    captured = os.open("captured", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(captured, 1)
    os.dup2(captured, 2)
    def do_something_else():
        time.sleep(1000)
    world = kadril.init()
    kadril.barrier()
    with open(f"pid.{world.rank}", "w") as file:
        file.write(str(os.getpid()))
    if world.rank == 0 and os.fork() == 0:
        do_something_else()
    if world.rank == world.size - 1:
        do_something_else()
    world.transport.allreduce(np.ones(3), name="loss")
"""


@pytest.fixture
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """An MPI by its flavour, which is the parameter."""
    try:
        return find_mpi(request.param, request.config.rootpath)
    except Unavailable as reason:
        if request.config.getoption("--require-mpi"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))


BOTH = pytest.mark.parametrize("mpi", ["openmpi", "mpich"], indirect=True)


def start_mpirun(
    playground: Playground, mpi: Mpi, size: int, program: str, *words: str, **variables: str
) -> Launched:
    """Start `kadril mpirun`, where it may be root and ranks may share cores."""
    here = ["--mpiarg", "--oversubscribe --bind-to none"] if mpi.flavour == "openmpi" else []
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        OPENMPI_DIRECTORY: str(playground.directory),
        "KADRIL_TRANSPORT": "mpi",
        "KADRIL_STALL_WARNING": "1",
        **variables,
    }
    command = ["--mpirun", str(mpi.mpirun), *here, "-n", str(size), *words]
    return playground.start(*command, str(mpi.python), program, verb="mpirun", env=environment)


def pids(playground: Playground, size: int) -> list[int]:
    """Return the processes of the ranks, as they say themselves."""
    return [int((playground.directory / f"pid.{rank}").read_text()) for rank in range(size)]


def check_ps_and_dump(job: str, processes: list[int], line: int) -> None:
    """Check what both say of a job whose last rank stays out of an all-reduce."""
    _, _, listed = kadril("ps").partition(f"job {job}: ")
    size = len(processes)
    assert listed.startswith(f"{size} of {size} ranks here: ")
    rows = listed.splitlines()[1 : size + 1]
    for rank, (pid, row) in enumerate(zip(processes, rows, strict=True)):
        state = "waiting: in allreduce" if rank < size - 1 else "running: in no collective since"
        assert row.startswith(f"  process {pid}  rank {rank} {state}")
    dumped = kadril("dump", job)
    assert (
        ", ".join(f"rank {rank} is process {pid}" for rank, pid in enumerate(processes)) in dumped
    )
    assert "number 1: barrier" in dumped
    assert f'late.py", line {line}' in dumped  # where the others wait
    assert "in do_something_else" in dumped  # and where the last one is


def marked_segments(processes: list[int]) -> list[Path]:
    return [segment for pid in processes for segment in mapped_segments(pid)]


@pytest.mark.parametrize(
    ("mpi", "end"),
    [
        ("openmpi", signal.SIGKILL),
        ("mpich", signal.SIGTERM),
        pytest.param("openmpi", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("mpich", signal.SIGKILL, marks=pytest.mark.long),
    ],
    indirect=["mpi"],
)
def test_kadril_mpirun_tells_which_ranks_wait_where(
    playground: Playground, mpi: Mpi, end: signal.Signals
) -> None:
    """Whatever ends the launcher then, SIGKILL included, nothing is left of the job."""
    launched = start_mpirun(playground, mpi, 3, playground.write("late.py", LATE))
    launched.await_output(rb"stacks: kadril dump .*\n", timeout=60.0)
    report = launched.err.decode()
    assert "has waited" not in report  # what ranks write themselves is captured
    assert re.search(r"kadril: the job does not move: ranks 0, 1 waited for \d+ s or more", report)
    assert re.search(
        r"kadril: +ranks 0, 1 waiting: in allreduce\(name='loss'\), .*late.py:18 .*, for \d+ s",
        report,
    )
    assert re.search(r"kadril: +rank 2 running: in no collective since .*late.py:9", report)
    found = re.search(r"stacks: kadril dump ([\w.]+-\d+);", report)
    assert found is not None
    processes = pids(playground, 3)
    check_ps_and_dump(found[1], processes, 18)
    segments = marked_segments(processes)
    launched.send(end)
    assert eventually(lambda: not playground.processes(), timeout=20.0)
    result = launched.finish()
    assert result.code == -signal.SIGKILL if end == signal.SIGKILL else result.code > 0
    assert result.err.decode().count("the job does not move") == 1
    for segment in segments:  # which MPI leaves where its ranks are killed
        segment.unlink(missing_ok=True)


@pytest.mark.long
@BOTH
def test_it_takes_less_than_ten_seconds(playground: Playground, mpi: Mpi) -> None:
    program = playground.write("late.py", LATE)
    launched = start_mpirun(playground, mpi, 3, program, KADRIL_STALL_WARNING="100")
    assert eventually((playground.directory / "pid.0").exists, timeout=60.0)
    launched.await_output(rb"stacks: kadril dump .*\n", timeout=10.0)
    segments = marked_segments(pids(playground, 3))
    launched.send(signal.SIGTERM)
    launched.finish()
    for segment in segments:
        segment.unlink(missing_ok=True)


@BOTH
def test_the_exit_code_is_that_of_mpirun(playground: Playground, mpi: Mpi) -> None:
    launched = start_mpirun(playground, mpi, 2, playground.write("end.py", "raise SystemExit(3)"))
    assert launched.finish().code == 3


# Rank 1 waits for rank 0 for longer than it takes to report it: 1 s, and 1.5 s until the next look.
ON_PURPOSE = """
    import time
    import numpy as np
    import kadril
    world = kadril.init()
    if world.rank == 0:
        time.sleep(4)
    world.transport.allreduce(np.ones(3), name="loss")
"""


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--no-stall-check"], {}),
        pytest.param([], {"KADRIL_STALL_CHECK": "0"}, marks=pytest.mark.long),
        pytest.param([], {}, marks=pytest.mark.long),
    ],
)
def test_a_job_that_waits_on_purpose_can_say_so(
    playground: Playground, mpi: Mpi, words: list[str], variables: Mapping[str, str]
) -> None:
    program = playground.write("on_purpose.py", ON_PURPOSE)
    result = start_mpirun(playground, mpi, 2, program, *words, **variables).finish(60.0)
    assert result.code == 0, result.err
    assert (b"the job does not move" in result.err) == (not words and not variables)


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.fixture
def by_hand(playground: Playground) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks with the variables of torchrun, which this process has started."""
    program = playground.write("late.py", LATE)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, program],
            env=playground.environment({**common, "RANK": str(rank)}),
            cwd=playground.directory,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    yield processes
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)  # with the child of rank 0
        process.wait()


def waits(job: str) -> bool:
    """Whether the first rank of a job waits in the all-reduce."""
    return "rank 0 waiting: in allreduce" in kadril("ps").partition(f"job {job}: ")[2]


def test_ps_and_dump_show_ranks_that_were_started_by_hand(
    playground: Playground, by_hand: list[subprocess.Popen[bytes]]
) -> None:
    job = f"{command_name(os.getpid())}-{os.getpid()}"
    assert eventually(lambda: waits(job), timeout=60.0)
    assert [process.pid for process in by_hand] == pids(playground, 2)
    check_ps_and_dump(job, pids(playground, 2), 18)


@pytest.mark.long
def test_ps_and_dump_show_ranks_of_torchrun(playground: Playground) -> None:
    torchrun = Path(sys.executable).parent / "torchrun"
    program = playground.write("late.py", LATE)
    with subprocess.Popen(
        [torchrun, "--standalone", "--nproc-per-node", "2", program],
        # torchrun leaves directories where temporary files go.
        env=playground.environment({"TMPDIR": str(playground.directory)}),
        cwd=playground.directory,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        assert eventually(lambda: waits(f"torchrun-{launcher.pid}"), timeout=60.0)
        check_ps_and_dump(f"torchrun-{launcher.pid}", pids(playground, 2), 18)
        for pid in playground.processes():
            os.kill(pid, signal.SIGKILL)
