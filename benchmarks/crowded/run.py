"""Measure training steps on more ranks than there are cores, beside DDP.

    python benchmarks/crowded/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

With `--only` it measures one workload, and leaves the others in today's file as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from check_bars import WORKLOADS, check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.sheet import Series
from kadril.bench.side_by_side import time_side_by_side

NUM_STARTS = 2
TIMEOUT = 1800.0
SETTINGS = ("alone", "kadril", "kadril, whole", "DDP", "DDP, views")
PROGRAM = Path(__file__).parents[1] / "sharded" / "rank.py"


def measure(num_rounds: int, wanted: Sequence[str]) -> Outcome:
    """Time all settings, each in processes of its own."""
    series: list[Series] = []
    for workload in wanted:
        print(workload, file=sys.stderr, flush=True)
        model, num_ranks = WORKLOADS[workload]
        timed, _ = time_side_by_side(
            PROGRAM,
            {name: ["--model", model, "--fused", "--setting", name] for name in SETTINGS},
            num_ranks=num_ranks,
            num_rounds=num_rounds,
            num_starts=NUM_STARTS,
            timeout=TIMEOUT,
        )
        series += [Series(workload, setting, rounds) for setting, rounds in timed.items()]
    return Outcome(series)


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Training on more ranks than cores, beside DDP on gloo",
            num_ranks=max(num_ranks for _, num_ranks in WORKLOADS.values()),
            num_rounds=8,
            measure=measure,
            check=check_bars,
            workloads=tuple(WORKLOADS),
        )
    )
