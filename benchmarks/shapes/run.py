"""Measure sharded training of transformers of several shapes on two ranks.

    python benchmarks/shapes/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

With `--only` it measures one workload, and leaves the others in today's file as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import WORKLOADS, check_bars
from harness.bars import show_times
from harness.claim import Claim
from harness.results import Measured, Results
from harness.side_by_side import time_workload

NUM_RANKS = 2
NUM_STARTS = 4
TIMEOUT = 1800.0
SETTINGS = (
    "alone",
    "alone, heap kept",
    "kadril",
    "kadril, stage 1",
    "kadril, optimizer",
    "kadril, whole",
    "DDP, views",
)
PROGRAM = Path(__file__).parents[1] / "sharded" / "rank.py"


def measure(num_rounds: int, wanted: Sequence[str]) -> Measured:
    """Time all settings, each in processes of its own."""
    return Measured.join(measure_one(workload, num_rounds) for workload in wanted)


def measure_one(workload: str, num_rounds: int) -> Measured:
    """Time all settings of one workload."""
    shape, is_fused = WORKLOADS[workload]
    words = ["--model", shape, *(["--fused"] if is_fused else [])]
    return time_workload(
        workload,
        PROGRAM,
        {name: [*words, "--setting", name] for name in SETTINGS},
        num_ranks=NUM_RANKS,
        num_rounds=num_rounds,
        num_starts=NUM_STARTS,
        timeout=TIMEOUT,
    )


def describe(results: Results) -> list[str]:
    """Compare with a program without communication whose allocator keeps what is freed."""
    lines = []
    for workload in WORKLOADS:
        kept = results.find(workload, "alone, heap kept")
        for setting in SETTINGS:
            ratio = results.ratio(results.find(workload, setting), kept)
            if ratio is not None and setting != "alone, heap kept":
                lines.append(
                    f"{workload}, {setting}: {show_times(ratio)} of a step without communication"
                    " in a process whose allocator keeps what is freed"
                )
    return lines


if __name__ == "__main__":
    Claim(
        theme="shapes",
        title="Sharded training of transformers of several shapes",
        num_ranks=NUM_RANKS,
        num_rounds=12,
        measure=measure,
        check=check_bars,
        describe=describe,
        workloads=tuple(WORKLOADS),
    ).main()
