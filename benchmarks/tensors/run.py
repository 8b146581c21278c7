"""Measure many small tensors on two ranks, and write what came out to `benchmarks/results`.

python benchmarks/tensors/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import check_bars
from harness.claim import Claim
from harness.program import run_program
from harness.results import Measured
from harness.turns import make_series

from kadril.bench.report import Idleness

NUM_RANKS = 2
IDLE_SECONDS = 5.0
TIMEOUT = 1800.0


def measure(num_rounds: int) -> Measured:
    """Run all settings on two ranks; then two that do nothing."""
    folder = Path(__file__).parent
    arguments = ["--rounds", str(num_rounds)]
    answers = run_program(folder / "rank.py", arguments, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    idle = run_program(
        folder / "idle.py", ["--seconds", str(IDLE_SECONDS)], num_ranks=NUM_RANKS, timeout=TIMEOUT
    )
    idle_world = Idleness(sum(one["cpu"] for one in idle), sum(one["wall"] for one in idle))
    series = make_series(answers, answers[0]["notes"])
    return Measured(series, {"idle_world": dataclasses.asdict(idle_world)})


if __name__ == "__main__":
    Claim(
        theme="tensors",
        title="Many small tensors",
        num_ranks=NUM_RANKS,
        num_rounds=10,
        measure=measure,
        check=check_bars,
    ).main()
