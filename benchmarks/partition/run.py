"""Measure partitioned layers and primitives on two ranks, and write what came out.

python benchmarks/partition/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import check_bars
from harness.claim import Claim
from harness.program import run_program
from harness.results import Measured
from harness.turns import make_series

from kadril.bench.peers import find_start

NUM_RANKS = 2
TIMEOUT = 1800.0


def measure(num_rounds: int) -> Measured:
    """Run all settings on two ranks of an MPI job, so that all ways share the same processes."""
    answers = run_program(
        Path(__file__).with_name("rank.py"),
        ["--rounds", str(num_rounds)],
        num_ranks=NUM_RANKS,
        timeout=TIMEOUT,
        start=find_start("openmpi", NUM_RANKS),
    )
    return Measured(make_series(answers), {"setup": [one["setup"] for one in answers]})


if __name__ == "__main__":
    Claim(
        theme="partition",
        title="Partitioned layers and primitives",
        num_ranks=NUM_RANKS,
        num_rounds=15,
        measure=measure,
        check=check_bars,
    ).main()
