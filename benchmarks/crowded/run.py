"""Measure training steps on more ranks than there are cores, beside DDP.

    python benchmarks/crowded/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

With `--only` it measures one workload, and leaves the others in today's file as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import WORKLOADS, check_bars
from harness.claim import Claim
from harness.results import Measured
from harness.side_by_side import time_workload

NUM_STARTS = 2
TIMEOUT = 1800.0
SETTINGS = ("alone", "kadril", "kadril, whole", "DDP", "DDP, views")
PROGRAM = Path(__file__).parents[1] / "sharded" / "rank.py"


def measure(num_rounds: int, wanted: Sequence[str]) -> Measured:
    """Time all settings, each in processes of its own."""
    return Measured.join(measure_one(workload, num_rounds) for workload in wanted)


def measure_one(workload: str, num_rounds: int) -> Measured:
    """Time all settings of one workload."""
    model, num_ranks = WORKLOADS[workload]
    return time_workload(
        workload,
        PROGRAM,
        {name: ["--model", model, "--fused", "--setting", name] for name in SETTINGS},
        num_ranks=num_ranks,
        num_rounds=num_rounds,
        num_starts=NUM_STARTS,
        timeout=TIMEOUT,
    )


if __name__ == "__main__":
    Claim(
        theme="crowded",
        title="Training on more ranks than cores, beside DDP on gloo",
        num_ranks=max(num_ranks for _, num_ranks in WORKLOADS.values()),
        num_rounds=8,
        measure=measure,
        check=check_bars,
        workloads=tuple(WORKLOADS),
    ).main()
