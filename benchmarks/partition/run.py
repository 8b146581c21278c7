"""Measure partitioned layers and primitives on two ranks, and write what came out.

python benchmarks/partition/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path

from check_bars import check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.peers import find_start
from kadril.bench.program import run_program
from kadril.bench.sheet import Series
from kadril.bench.turns import slowest

NUM_RANKS = 2
TIMEOUT = 1800.0


def measure(num_rounds: int) -> Outcome:
    """Run all settings on two ranks of an MPI job, so that all ways share the same processes."""
    answers = run_program(
        Path(__file__).with_name("rank.py"),
        ["--rounds", str(num_rounds)],
        num_ranks=NUM_RANKS,
        timeout=TIMEOUT,
        start=find_start("openmpi", NUM_RANKS),
    )
    series = [
        Series(name, setting, rounds)
        for name in answers[0]["samples"]
        for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
    ]
    return Outcome(series, {"setup": [one["setup"] for one in answers]})


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Partitioned layers and primitives",
            num_ranks=NUM_RANKS,
            num_rounds=15,
            measure=measure,
            check=check_bars,
        )
    )
