"""How the tests of this folder run an example."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch._dynamo  # which the first optimizer imports in every rank, unless it is there

from kadril.compat import job_variables, rank_variables
from kadril.launch.job import Job
from kadril.testing import Ranks, run_on_ranks
from kadril.world import World

__all__ = ["EXAMPLES", "launch_example", "run_alone", "run_example", "run_on_pool"]

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


def run_example(
    name: str, *arguments: str, num_ranks: int = 2, compat: str = "", timeout: float = 100.0
) -> list[str]:
    """Run an example in forked processes; return what it prints, rank by rank.

    As `launch_example`, but torch is imported already, which would take most of the time. Ranks
    have the variables of `kadril run`, and meet by them.
    """
    program = str(EXAMPLES / name)
    with Job(num_ranks) as job, Ranks(num_ranks, transport=None) as ranks:
        job.release_listener()
        job.socket_path.unlink()  # rank 0 makes its own
        identities = [job.identity(rank) for rank in range(num_ranks)]
        ranks.start(run_rank, identities, program, arguments, compat)
        outcomes = ranks.wait(timeout)
    for outcome in outcomes:
        assert outcome.returned, f"{outcome}\n{outcome.output}"
    return [line for outcome in outcomes for line in outcome.value.splitlines()]


def run_rank(
    rank: int,
    size: int,
    identities: list[dict[str, str]],
    program: str,
    arguments: tuple[str, ...],
    compat: str,
) -> str:
    """Run the program of a rank in this process, and return what it prints."""
    torch.set_num_threads(1)
    os.environ.update(identities[rank], OMP_NUM_THREADS="1")
    if compat:
        os.environ.update(job_variables([compat], os.environ))
        os.environ.update(rank_variables(compat, rank, size))
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    return "\n".join(print_of(program, *arguments))


def run_alone(name: str, *arguments: str) -> list[str]:
    """Run an example in a world of one: this process, which has imported torch already."""
    return print_of(str(EXAMPLES / name), *arguments)


def print_of(program: str, *arguments: str) -> list[str]:
    """Run a program in this process; return the lines that it prints."""
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [program, *arguments]), contextlib.redirect_stdout(output):
        runpy.run_path(program, run_name="__main__")
    return output.getvalue().splitlines()


def run_on_pool(program: str, num_ranks: int = 2) -> list[str]:
    """What each rank of the standing pool prints; `kadril.init()` gives the world that is there."""
    return run_on_ranks(num_ranks, run_text, program)


def run_text(_: World, program: str) -> str:
    """What a program prints in this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    return output.getvalue()
