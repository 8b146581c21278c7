"""Measure many small tensors on two ranks, and write what came out to `benchmarks/results`.

python benchmarks/tensors/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from check_bars import check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.program import run_program
from kadril.bench.report import Idleness
from kadril.bench.sheet import Series
from kadril.bench.turns import slowest

NUM_RANKS = 2
IDLE_SECONDS = 5.0
TIMEOUT = 1800.0


def measure(num_rounds: int) -> Outcome:
    """Run all settings on two ranks; then two that do nothing."""
    folder = Path(__file__).parent
    arguments = ["--rounds", str(num_rounds)]
    answers = run_program(folder / "rank.py", arguments, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    idle = run_program(
        folder / "idle.py", ["--seconds", str(IDLE_SECONDS)], num_ranks=NUM_RANKS, timeout=TIMEOUT
    )
    idle_world = Idleness(sum(one["cpu"] for one in idle), sum(one["wall"] for one in idle))
    notes = answers[0]["notes"]
    series = [
        Series(name, setting, rounds, notes.get(f"{name}: {setting}", ""))
        for name in answers[0]["samples"]
        for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
    ]
    return Outcome(series, {"idle_world": dataclasses.asdict(idle_world)})


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Many small tensors",
            num_ranks=NUM_RANKS,
            num_rounds=10,
            measure=measure,
            check=check_bars,
        )
    )
