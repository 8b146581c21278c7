"""Shared memory that Open MPI leaves: it lies where the session removes it.

mpirun removes what its ranks leave. It does not where it is killed itself, as by the timeout of a
test; and a process that imports mpi4py.MPI without any mpirun leaves its `sm_segment.*`, of 16 MiB,
at every exit. Both stayed in /dev/shm.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY, Mpi, Unavailable, find_mpi

KILL_ALL = """
import os, signal
from mpi4py import MPI

pids = MPI.COMM_WORLD.allgather(os.getpid())
if MPI.COMM_WORLD.rank == 0:
    for pid in [os.getppid(), *reversed(pids)]:
        os.kill(pid, signal.SIGKILL)
MPI.COMM_WORLD.Barrier()
"""


def segments(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("sm_segment.*")}


def left_by(mpi: Mpi, *launcher: str, program: str) -> set[str]:
    """Run a program, and return the segments it has left in the directory of the session."""
    directory = Path(os.environ[OPENMPI_DIRECTORY])
    assert directory.name.startswith(f"kadril-session-{os.getpid()}-"), "removed with the session"
    before = segments(directory)
    subprocess.run(
        [*launcher, mpi.python, "-c", program],
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return segments(directory) - before


def test_open_mpi_leaves_nothing_in_dev_shm(pytestconfig: pytest.Config) -> None:
    try:
        mpi = find_mpi("openmpi", pytestconfig.rootpath)
    except Unavailable as error:
        pytest.skip(str(error))
    launcher = (str(mpi.mpirun), "--oversubscribe", "-n", "2")
    of_ranks = left_by(mpi, *launcher, program=KILL_ALL)
    assert len(of_ranks) == 2
    without_mpirun = left_by(mpi, program="from mpi4py import MPI")
    assert not (of_ranks | without_mpirun) & segments(Path("/dev/shm"))  # noqa: S108
