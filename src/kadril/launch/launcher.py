"""A run of a program on many ranks of this host, from the first check to the last clean-up."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kadril.launch.guardian import Guardian
from kadril.launch.job import Job
from kadril.launch.options import LaunchError, RunOptions
from kadril.launch.rank_environment import rank_environment
from kadril.launch.signal_inbox import SignalInbox
from kadril.launch.summary import Outcome, exit_code
from kadril.launch.supervisor import Supervisor

__all__ = ["JobFiles", "run", "run_command"]

PYTHONS = ("python", "python3")


def run_command(command: Sequence[str], num_ranks: int, **options: Any) -> int:
    """Run a program on many ranks of this host, as `kadril run` does.

    Output goes to the descriptors 1 and 2 of this process. Signals are forwarded where this is
    called from the main thread; elsewhere Python does not let anybody receive them.

    Args:
        command: the program and its arguments.
        num_ranks: how many ranks to start.
        options: the other fields of `RunOptions`.

    Returns:
        0 if all ranks ended well, otherwise the code of the rank that failed first, 128 + signal
        if a signal killed it, or if a signal ended the job.

    Raises:
        ConfigError: an option makes no sense.
        LaunchError: the program, or what it needs, cannot be had.
    """
    return run(RunOptions(command=tuple(command), num_ranks=num_ranks, **options))


class JobFiles(Protocol):
    """Files in the private directory of the job, by which ranks get and leave data."""

    def write(self, directory: Path) -> None:
        """Write what the ranks need; called before they start."""

    def read(self, directory: Path, outcome: Outcome) -> None:
        """Read what they left; called when all have ended, before the directory is removed."""


def run(options: RunOptions, files: JobFiles | None = None) -> int:
    """Run a program on many ranks; see `run_command`."""
    occupy_standard_descriptors()
    check_descriptor_limit(options)
    command = resolve(options.command)
    environment = rank_environment(options, os.environ)
    job = Job(options.num_ranks)
    # The guardian comes before the directory and goes after it, so that there is always somebody to
    # remove it; and signals are held in the inbox all the while.
    with (
        SignalInbox() as inbox,
        Guardian(job) as guardian,
        job,
        Supervisor(options, job, guardian, inbox) as supervisor,
    ):
        if files is not None:
            files.write(job.directory)
        supervisor.start(command, environment)
        outcome = supervisor.run()
        if files is not None:
            files.read(job.directory, outcome)
        return exit_code(outcome)


def resolve(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command to start: this Python runs a `.py` file and a bare `python` or `python3`.

    The first of that name on PATH is another one wherever the environment of kadril is not
    activated, and has neither kadril nor torch.

    Raises:
        LaunchError: there is no such file.
    """
    program = command[0]
    if program in PYTHONS:
        return (sys.executable, *command[1:])
    if not program.endswith(".py"):
        return tuple(command)
    if not Path(program).is_file():
        raise LaunchError(
            f"no such file: {program!r} (in {Path.cwd()})",
            exit_code=127,
        )
    return (sys.executable, *command)


def check_descriptor_limit(options: RunOptions) -> None:
    """Find out before the start that there are too few descriptors to watch all ranks.

    Raises:
        LaunchError: the limit would be reached.
    """
    num_logs = sum(each is not None for each in (options.output_dir, options.output_filename))
    per_rank = 3 + 2 * num_logs  # two pipes, a pidfd, two files of each kind of log
    needed = per_rank * options.num_ranks + 32
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise LaunchError(
            f"{options.num_ranks} ranks need {needed} open files in the launcher, and the limit is "
            f"{limit}; try: ulimit -n {needed} (up to {hard_limit} without root)"
        )


def occupy_standard_descriptors() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed.

    Otherwise the next file or socket would get that number, and be printed to.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
