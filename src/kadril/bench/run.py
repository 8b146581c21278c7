"""One run: start the jobs, let them take turns, end them, report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable

from kadril.bench.figures import make_ratios, make_results
from kadril.bench.job import Job, JobError
from kadril.bench.options import PEERS, BenchOptions
from kadril.bench.peers import PeerMissing, find_start
from kadril.bench.report import Idleness, Report, describe_surroundings
from kadril.bench.rounds import Rounds
from kadril.errors import KadrilError

__all__ = ["run_bench"]


def run_bench(
    options: BenchOptions, *, command: str = "", tell: Callable[[str], None] = lambda text: None
) -> Report:
    """Measure, and leave no process behind.

    Args:
        options: what to measure.
        command: how to run it again, for the report.
        tell: is given what happens, line by line.

    Raises:
        JobError: kadril itself, or a peer that was asked for by name, cannot be measured.
        PeerMissing: a peer that was asked for by name is not installed.
    """
    surroundings = describe_surroundings()
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        jobs = start_jobs(options, missing, tell, stack)
        measured = Rounds(jobs, options, tell).run()
        for job in jobs.values():
            if job.name not in measured.missing:
                job.rest()
        idle = {name: Idleness(job.idle_cpu, job.idle_wall) for name, job in jobs.items()}
        named = {name: text for job in jobs.values() for name, text in job.versions.items()}
    results = make_results(measured, options.num_ranks)
    return Report(
        date=surroundings["date"],
        command=command,
        num_ranks=options.num_ranks,
        machine=surroundings["machine"],
        load={**surroundings["load"], "end": os.getloadavg()},
        versions={**surroundings["versions"], **{f"engine {k}": v for k, v in named.items()}},
        options=dataclasses.asdict(options),
        missing={**missing, **measured.missing},
        idle=idle,
        results=tuple(results),
        ratios=tuple(make_ratios(results)),
    )


def start_jobs(
    options: BenchOptions,
    missing: dict[str, str],
    tell: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> dict[str, Job]:
    """Start all jobs at once and wait until they are ready; those that cannot be had are noted."""
    starts = {"kadril": find_start("kadril", options.num_ranks)}
    for name in PEERS if options.peers is None else options.peers:
        try:
            starts[name] = find_start(name, options.num_ranks)
        except PeerMissing as error:
            if options.peers is not None:
                raise
            note(missing, name, error, tell)
    tell("starting the ranks")
    jobs: dict[str, Job] = {}
    for name, start in starts.items():
        jobs[name] = Job(name, start, options.num_ranks)
        stack.callback(jobs[name].close)
    for name, job in list(jobs.items()):
        try:
            job.await_ranks()
        except JobError as error:
            if name == "kadril" or options.peers is not None:
                raise
            note(missing, name, error, tell)
            job.close()
            del jobs[name]
    return jobs


def note(
    missing: dict[str, str], name: str, error: KadrilError, tell: Callable[[str], None]
) -> None:
    """Note why a peer is left out."""
    missing[name] = str(error)
    tell(f"without {name}: {error}")
