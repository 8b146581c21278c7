"""Run programs on ranks that are forked from a process that has torch imported.

`kadril run` starts each rank anew, and importing torch takes seconds of every one of them: most of
the time of a short program. Here a rank is some milliseconds old when the program begins, and has
the variables of `kadril run`, by which it meets the others. What a test is about starting a
program, it has to start it for real.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import torch._dynamo  # which the first optimizer imports in every rank, unless it is there

from kadril.compat import job_variables, rank_variables
from kadril.launch.local.job import Job
from kadril.testing import Ranks

__all__ = ["print_of", "run_forked"]


def run_forked(
    program: str | Path,
    *arguments: str,
    num_ranks: int = 2,
    compat: str = "",
    timeout: float = 100.0,
) -> list[str]:
    """Run a program in its directory; return what it prints, rank by rank.

    Args:
        program: a Python file.
        arguments: its words on the command line.
        num_ranks: how many ranks.
        compat: a package that ranks find in place of that installed, as by `--compat`.
        timeout: in seconds.
    """
    with Job(num_ranks) as job, Ranks(num_ranks, transport=None) as ranks:
        job.release_listener()
        job.socket_path.unlink()  # rank 0 makes its own
        identities = [job.identity(rank, rank, num_ranks) for rank in range(num_ranks)]
        ranks.start(run_rank, identities, str(program), arguments, compat)
        outcomes = ranks.wait(timeout)
    for outcome in outcomes:
        assert outcome.returned, f"{outcome}\n{outcome.output}"
    return [line for outcome in outcomes for line in outcome.value]


def run_rank(
    rank: int,
    size: int,
    identities: list[dict[str, str]],
    program: str,
    arguments: tuple[str, ...],
    compat: str,
) -> list[str]:
    """Run the program of a rank in this process; return what it prints."""
    torch.set_num_threads(1)
    os.environ.update(identities[rank], OMP_NUM_THREADS="1")
    if compat:
        os.environ.update(job_variables([compat], os.environ))
        os.environ.update(rank_variables(compat, rank, (tuple(range(size)),)))
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    os.chdir(Path(program).parent)
    return print_of(program, *arguments)


def print_of(program: str, *arguments: str) -> list[str]:
    """Run a program in this process; return the lines that it prints."""
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [program, *arguments]), contextlib.redirect_stdout(output):
        runpy.run_path(program, run_name="__main__")
    return output.getvalue().splitlines()
