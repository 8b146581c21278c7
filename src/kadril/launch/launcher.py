"""A run of a program on many ranks of this host, from the first check to the last clean-up."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from kadril.launch.local.guardian import Guardian
from kadril.launch.local.job import Job, JobFiles
from kadril.launch.local.local_host import LocalHost, RankStart
from kadril.launch.local.program import check_program, with_python
from kadril.launch.local.rank_environment import rank_environment
from kadril.launch.mapping.binding import bind_ranks, describe_sharing, thread_variables
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.rank_file import PlacedRank, format_numbers
from kadril.launch.options import LaunchError, RunOptions
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import exit_code
from kadril.launch.supervision.supervisor import Supervisor

__all__ = ["run", "run_command"]


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


def run(options: RunOptions, files: JobFiles | None = None) -> int:
    """Run a program on many ranks; see `run_command`."""
    occupy_standard_descriptors()
    check_descriptor_limit(options)
    if options.elastic is not None:
        # Imported here: it imports this module, and other jobs need nothing of it.
        from kadril.launch.elastic import run_elastic

        return run_elastic(options, options.elastic, files)
    if options.placement is not None and options.placement.needs_ssh:
        # Imported here: a job of this host alone needs nothing of it.
        from kadril.launch.several_hosts import run_on_hosts

        return run_on_hosts(options, files)
    check_program(options.command)
    command = with_python(options.command)
    environment = rank_environment(options, os.environ)
    topology = this_topology()
    ranks = ranks_here(options)
    source = "" if options.placement is None else options.placement.source
    bound = bind_ranks(ranks, topology, bind=options.bind, source=source)
    threads, note = thread_variables(environment.variables, bound, topology)
    job = Job(options.num_ranks)
    # The guardian comes before the directory and goes after it, so that there is always somebody to
    # remove it; and signals are held in the inbox all the while.
    with (
        SignalInbox() as inbox,
        Guardian(job) as guardian,
        job,
        Supervisor(options, inbox) as supervisor,
    ):
        if files is not None:
            files.write(job.directory)
        output = supervisor.output
        host = LocalHost(job.id, guardian, supervisor.selector, output, output.notice)
        supervisor.add(host)
        for warning in [*environment.warnings, *describe_sharing(ranks, bound)]:
            output.notice(warning)
        supervisor.tell(f"job {job.id} in {job.directory}")
        if note:
            supervisor.tell(note)
        variables = [
            environment.variables | own | of_threads
            for own, of_threads in zip(environment.of_rank, threads, strict=True)
        ]
        for start in plan_starts(options, job, command, variables, bound):
            pid = host.start(start)
            own = format_numbers(sorted(start.processors))
            supervisor.tell(f"rank {start.rank} is process {pid}{f' on core {own}' * bool(own)}")
        job.release_listener()
        outcome = supervisor.run()
        if files is not None:
            files.read(job.directory, outcome)
        return exit_code(outcome)


def plan_starts(
    options: RunOptions,
    job: Job,
    command: Sequence[str],
    variables: Sequence[dict[str, str]],
    bound: Sequence[frozenset[int]],
) -> Iterator[RankStart]:
    """Yield how each rank of a job on this host is started."""
    listener = job.listener
    for rank in range(options.num_ranks):
        first = rank == 0
        yield RankStart(
            rank,
            command,
            variables[rank] | job.identity(rank, rank, options.num_ranks),
            stdin=None if first and options.stdin else subprocess.DEVNULL,
            inherit=[listener.fileno()] if first and listener is not None else [],
            processors=bound[rank],
        )


def ranks_here(options: RunOptions) -> Sequence[PlacedRank]:
    """Return the ranks of a job on this host alone, with the cores that a rank file gives them."""
    if options.placement is None:
        return [PlacedRank(rank, "localhost", ()) for rank in range(options.num_ranks)]
    return options.placement.hosts[0].ranks


def check_descriptor_limit(options: RunOptions) -> None:
    """Find out before the start that there are too few descriptors to watch all ranks.

    Raises:
        LaunchError: the limit would be reached.
    """
    num_logs = sum(each is not None for each in (options.output_dir, options.output_filename))
    per_rank = 3 + 2 * num_logs  # two pipes, a pidfd, two files of each kind of log
    if options.elastic is not None:
        per_rank += 1 + 3  # a connection; and what a dead rank has until its remains are gone
    needed = per_rank * options.num_places + 32
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
