"""A rank dies or stops: the others raise, with its rank, on every transport that can tell.

For shared memory `tests/faults` does this at every point of every collective. Here: gloo, whose
messages name no rank, our own connections, and MPI with fault tolerance. Without that, MPI ends the
whole job.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from death_kit import allreduce_for_ever, check_survivors, wait_for_rank

import kadril
from kadril.testing import Ranks
from kadril.testing.mpi_worker_pool import Unavailable, find_mpi

COUNTS = {"meeting": 3, "packets": 3_000_000}

CARRIERS = ("c10d", "tcp")


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (3, 1), (4, 3)])
@pytest.mark.parametrize("transport", CARRIERS)
def test_death_in_a_collective(transport: str, size: int, victim: int, count: int) -> None:
    with Ranks(size, transport=transport, patience=20.0) as ranks:
        ranks.start(allreduce_for_ever, count)
        ranks.wait_mark("running")
        ranks.signal(victim, signal.SIGKILL)
        check_survivors(ranks.wait(30.0), victim)


def test_death_in_the_middle_of_a_packet() -> None:
    # gloo does not wake a receiver that has a part of a packet when its sender dies: without a look
    # at the connection, about one in three of these deaths is noticed only when patience ends.
    dice = random.Random(1)
    for _ in range(8):
        with Ranks(2, transport="c10d", patience=20.0) as ranks:
            ranks.start(allreduce_for_ever, 10_000_000)
            ranks.wait_mark("running")
            # The time of the death is what is random; nothing waits for this to be long enough.
            time.sleep(dice.uniform(0, 0.06))
            ranks.signal(1, signal.SIGKILL)
            check_survivors(ranks.wait(30.0), 1)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("transport", CARRIERS)
def test_death_of_a_rank_that_is_waited_for(transport: str, victim: int) -> None:
    # Rank 0 of c10d takes the store with it, and so the notes by which the others would name it.
    with Ranks(3, transport=transport, patience=20.0) as ranks:
        ranks.start(wait_for_rank, victim)
        ranks.wait_mark("running")
        ranks.signal(victim, signal.SIGKILL)
        check_survivors(ranks.wait(30.0), victim)


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("transport", CARRIERS)
def test_a_stopped_rank_is_late(transport: str, count: int) -> None:
    with Ranks(3, transport=transport, patience=1.0) as ranks:
        ranks.start(allreduce_for_ever, count)
        ranks.wait_mark("running")
        ranks.signal(1, signal.SIGSTOP)
        for outcome in ranks.wait(20.0):
            if outcome.rank != 1:
                assert outcome.error is not None, outcome
                assert outcome.error.type == "Stalled", outcome
                assert outcome.error.fields["rank"] == 1, outcome


MPI_PROGRAM = """
import os, signal
import numpy as np
from mpi4py import MPI
from kadril.config import Config
from kadril.errors import PeerLost
from kadril.transport.mpi import MpiTransport

world = MPI.COMM_WORLD
transport = MpiTransport.open(world, world_ranks=range(world.size), config=Config(patience=20.0))
array = np.zeros(300_000, np.float32)
transport.allreduce(array)
if transport.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        transport.allreduce(array)
except PeerLost as error:
    print(f"rank {transport.rank} lost {error.rank} after {error.elapsed:.3f} s", flush=True)
survivors = world.Shrink()  # what is left goes on
again = MpiTransport.open(survivors, world_ranks=[0, 2], config=Config(patience=20.0))
ones = np.ones(3)
again.allreduce(ones)
print(f"rank {transport.rank} goes on with {ones.tolist()}", flush=True)
os._exit(0)  # MPI_Finalize would wait for the dead
"""


def test_death_in_a_fault_tolerant_mpi(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    try:
        mpi = find_mpi("openmpi", pytestconfig.rootpath)
    except Unavailable as error:
        pytest.skip(str(error))
    program = tmp_path / "program.py"
    program.write_text(MPI_PROGRAM)
    command = [mpi.mpirun, "--with-ft", "ulfm", "--oversubscribe", "-n", "3", mpi.python, program]
    source = str(Path(kadril.__file__).parents[1])
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": os.pathsep.join([source, *filter(None, sys.path)]),
    }
    run = subprocess.run(
        [*map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for rank in (0, 2):
        assert f"rank {rank} lost 1 after 0." in run.stdout, run.stdout + run.stderr
        assert f"rank {rank} goes on with [2.0, 2.0, 2.0]" in run.stdout, run.stdout + run.stderr
