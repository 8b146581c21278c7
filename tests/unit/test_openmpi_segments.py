"""Shared memory that Open MPI leaves: it lies where the session removes it.

mpirun removes what ranks leave that are killed. Where mpirun is killed itself, as by the timeout of
a test, `sm_segment.*` of 16 MiB each stayed in /dev/shm.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY, Unavailable, find_mpi

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


def test_a_killed_mpirun_leaves_nothing_in_dev_shm(pytestconfig: pytest.Config) -> None:
    try:
        mpi = find_mpi("openmpi", pytestconfig.rootpath)
    except Unavailable as error:
        pytest.skip(str(error))
    directory = Path(os.environ[OPENMPI_DIRECTORY])
    assert directory.name.startswith(f"kadril-session-{os.getpid()}-"), "removed with the session"
    before = segments(directory)
    done = subprocess.run(
        [mpi.mpirun, "--oversubscribe", "-n", "2", mpi.python, "-c", KILL_ALL],
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    left = segments(directory) - before
    assert left, done.stdout + done.stderr
    assert not left & segments(Path("/dev/shm"))  # noqa: S108
