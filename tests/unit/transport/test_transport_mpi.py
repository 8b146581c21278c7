"""The MPI transport beyond what all transports have in common: threads, and manners."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kadril
from kadril.testing.mpi_worker_pool import Unavailable, find_mpi

PROGRAM = """
import sys, threading
import mpi4py

mpi4py.rc.thread_level = sys.argv[1]
import torch
from mpi4py import MPI
from kadril.config import Config
from kadril.errors import StateError
from kadril.sharded.reduction.communication_thread import communication_thread_for
from kadril.sharded.checkpoint.dcp.background import Background
from kadril.transport.mpi import MpiTransport

world = MPI.COMM_WORLD
other = 1 - world.rank
# MPICH has 2048 communicators, and is quick to make one; it is tried once.
num_turns = 2100 if MPI.get_vendor()[0] == "MPICH" and sys.argv[1] != "single" else 100


def open_transport():
    return MpiTransport.open(world, world_ranks=range(2), config=Config(patience=20.0))


def check(transport, turns=1):
    for _ in range(turns):
        ones = torch.ones(10_000)
        transport.allreduce(ones)
        assert ones.unique().tolist() == [2.0], ones


# A message of the user's, sent before and received after, with a tag that we use too.
request = world.isend(f"from {world.rank}", dest=other, tag=1)
transport = open_transport()
check(transport)
assert world.recv(source=other, tag=1) == f"from {other}"
request.wait()
print("user traffic is apart", flush=True)

# Threads on groups of their own.
groups = [transport.split(0), transport.split(0)]
errors = []


def run(group):
    try:
        check(group, 30)
    except StateError as error:
        errors.append(str(error))


threads = [threading.Thread(target=run, args=(group,)) for group in groups]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{len(errors)} of 2 threads were refused", *errors, flush=True)
print(f"work beside the computation: {communication_thread_for(transport) is not None}", flush=True)
savers = []
note = lambda: savers.append(threading.current_thread() is not threading.main_thread())
Background().run(transport.split(0), note).result(60.0)
print(f"saves beside the computation: {savers == [True]}", flush=True)

# A communicator is a scarce thing: an MPI has some thousands of them.
for _ in range(100):
    again = open_transport()
    again.close()
for _ in range(num_turns):
    mine = world.Dup()
    MpiTransport.open(mine, world_ranks=range(2), config=Config()).close()
    mine.Free()
for group in [*groups, transport]:
    group.close()
assert world.allreduce(1) == 2 and not MPI.Is_finalized()
print("the communicator is the caller's", flush=True)
"""


@pytest.mark.parametrize(
    ("flavour", "level", "num_refused"),
    [
        ("openmpi", "serialized", 0),
        pytest.param("mpich", "serialized", 0, marks=pytest.mark.long),
        ("mpich", "single", 2),
    ],
)
def test_one_process_among_others(
    flavour: str, level: str, num_refused: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    try:
        mpi = find_mpi(flavour, pytestconfig.rootpath)
    except Unavailable as error:
        pytest.skip(str(error))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--oversubscribe"] if mpi.flavour == "openmpi" else []
    source = str(Path(kadril.__file__).parents[1])
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": os.pathsep.join([source, *filter(None, sys.path)]),
    }
    run = subprocess.run(
        [str(mpi.mpirun), *options, "-n", "2", str(mpi.python), str(program), level],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("user traffic is apart") == 2
    assert run.stdout.count(f"{num_refused} of 2 threads were refused") == 2, run.stdout
    for what in ("work", "saves"):
        words = f"{what} beside the computation: {num_refused == 0}"
        assert run.stdout.count(words) == 2, run.stdout
    assert ("initialized for one thread only" in run.stdout) == bool(num_refused)
    assert run.stdout.count("the communicator is the caller's") == 2
