"""What a world costs that has nothing to do."""

from __future__ import annotations

import time

from kadril.bench.crew import Crew
from kadril.bench.peers import find_start
from kadril.bench.report import Idleness

__all__ = ["measure_idle"]


def measure_idle(num_ranks: int, seconds: float) -> Idleness:
    """Processor time, user and system, of ranks that have called `kadril.init()` and nothing since.

    Raises:
        CrewError: the ranks cannot be started.
    """
    crew = Crew("kadril", find_start("kadril", num_ranks), num_ranks)
    try:
        crew.await_ranks()
        crew.rest()
        cpu, wall = crew.idle_cpu, crew.idle_wall
        time.sleep(seconds)
        crew.rest()
        return Idleness(crew.idle_cpu - cpu, crew.idle_wall - wall)
    finally:
        crew.close()
