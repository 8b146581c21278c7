"""The cost of a world that has nothing to do."""

from __future__ import annotations

import time

from harness.bars import Bar
from kadril.bench.job import Job
from kadril.bench.peers import find_start
from kadril.bench.report import Idleness

__all__ = ["idle_bar", "measure_idle"]

MOST_SHARE = 0.001


def measure_idle(num_ranks: int, seconds: float) -> Idleness:
    """Return the processor time, user and system, of ranks that only called `kadril.init()`.

    Raises:
        JobError: the ranks cannot be started.
    """
    job = Job("kadril", find_start("kadril", num_ranks), num_ranks)
    try:
        job.await_ranks()
        job.rest()
        cpu, wall = job.idle_cpu, job.idle_wall
        time.sleep(seconds)
        job.rest()
        return Idleness(job.idle_cpu - cpu, job.idle_wall - wall)
    finally:
        job.close()


def idle_bar(what: str, idle: Idleness | None) -> Bar:
    """Return the bar of a world that has nothing to do; `idle` is None where not measured."""
    text = f"{what}: at most {MOST_SHARE:.1%} of a core per rank"
    if idle is None:
        return Bar(text, "", "not measured")
    measured = f"{idle.share:.4%} ({idle.cpu * 1e3:.2f} ms in {idle.wall:.1f} s)"
    return Bar(text, measured, "reached" if idle.share <= MOST_SHARE else "missed")
