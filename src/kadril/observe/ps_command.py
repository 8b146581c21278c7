"""`kadril ps` and `kadril dump`: what running jobs of this user do, without a debugger."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from kadril.observe.flight_record import CallRecord, seconds_ago
from kadril.observe.rank_report import (
    RankPlace,
    RankReport,
    collapse,
    describe_all,
    examine_ranks,
    name_all,
    name_process,
)
from kadril.observe.running_jobs import RunningJob, find_jobs

__all__ = ["dump_main", "main"]

NUM_LAST_CALLS = 5


def main(argv: list[str]) -> int:
    """Run `kadril ps`."""
    parser = argparse.ArgumentParser(
        prog="kadril ps", description="List the running jobs of this user on this host."
    )
    parser.parse_args(argv)
    jobs = find_jobs()
    if not jobs:
        print("no job of this user runs on this host", file=sys.stderr)
    for job in jobs:
        reports = look_at(job, with_stacks=False)
        print(f"job {job.id}: {name_all(reports, job.size)}: {job.ranks[0].command}")
        for report in reports:
            (line,) = describe_all([report])
            print(f"  process {report.pid}  {line}")
    return 0


def dump_main(argv: list[str]) -> int:
    """Run `kadril dump`."""
    parser = argparse.ArgumentParser(
        prog="kadril dump",
        description="Show what every rank of a running job does, its last collectives, and its"
        " Python stacks. Ranks write their stacks at a signal, which ends a call such as pause().",
    )
    parser.add_argument("job", help="name of the job, or how it begins; see `kadril ps`")
    asked = parser.parse_args(argv).job
    running = find_jobs()
    jobs = [job for job in running if job.id == asked]
    jobs = jobs or [job for job in running if job.id.startswith(asked)]
    if len(jobs) != 1:
        names = ", ".join(job.id for job in jobs) or "none"
        print(
            f"kadril dump: {asked!r} begins the names of {len(jobs)} running jobs ({names});"
            " `kadril ps` lists them",
            file=sys.stderr,
        )
        return 1
    (job,) = jobs
    reports = look_at(job, with_stacks=True)
    print(f"job {job.id}: {name_all(reports, job.size)}: {job.ranks[0].command}")
    for line in describe_all(reports):
        print(f"  {line}")
    print("  " + ", ".join(f"{name_process(each)} is process {each.pid}" for each in reports))
    ranks = [each for each in reports if each.rank >= 0]
    print_sections("last collectives", [(each.rank, last_calls(each)) for each in ranks])
    print_sections("stacks", [(each.rank, stacks_of(each)) for each in ranks])
    return 0


def look_at(job: RunningJob, *, with_stacks: bool) -> list[RankReport]:
    """Return what the ranks of a job do."""
    places = [RankPlace(each.rank, each.pid, each.record, each.is_elastic) for each in job.ranks]
    return examine_ranks(places, with_stacks=with_stacks)


def print_sections(title: str, texts: Sequence[tuple[int, str]]) -> None:
    """Print a text of each rank; texts that are equal are printed once."""
    print(f"\n{title}")
    for section in collapse([(rank, (f"\n{text}", None)) for rank, text in texts]):
        head, _, body = section.partition("\n")
        print(f"  {head.strip()}:")
        for line in body.splitlines():
            print(f"    {line}")


def last_calls(report: RankReport) -> str:
    """Return the last calls of a rank, the oldest first."""
    if report.record is None or not report.record.calls:
        return "none"
    return "\n".join(call_line(call) for call in report.record.calls[-NUM_LAST_CALLS:])


def call_line(call: CallRecord) -> str:
    """Return one call in a line."""
    when = (
        f"under way for {seconds_ago(call.begin):.0f} s"
        if call.end is None
        else f"ended {seconds_ago(call.end):.0f} s ago"
    )
    return f"number {call.number}: {call.text}, {call.place}, {when}"


def stacks_of(report: RankReport) -> str:
    """Return the stacks of a rank, or why there are none."""
    if report.stacks:
        return hide_addresses(report.stacks.strip())
    if report.state == "stopped":
        return "none: it is stopped, and writes them when it goes on (kill -CONT)"
    return "none: it did not answer in time, or has not called kadril.init()"


def hide_addresses(stacks: str) -> str:
    """Return stacks without the addresses of threads, so that those of ranks can be equal."""
    return re.sub(r"^(Thread|Current thread) 0x[0-9a-f]+", r"\1", stacks, flags=re.MULTILINE)
