"""Measure sharded training of transformers of several shapes on two ranks.

    python benchmarks/shapes/run.py [--rounds N] [--output DIR] [--only WORKLOAD]

With `--only` it measures one workload, and leaves the others in today's file as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from check_bars import WORKLOADS, check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.sheet import Series, Sheet
from kadril.bench.side_by_side import time_side_by_side

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


def measure(num_rounds: int, wanted: Sequence[str]) -> Outcome:
    """Time all settings, each in processes of its own."""
    series: list[Series] = []
    for workload in wanted:
        print(workload, file=sys.stderr, flush=True)
        shape, is_fused = WORKLOADS[workload]
        flags = ["--fused"] if is_fused else []
        timed, _ = time_side_by_side(
            PROGRAM,
            {name: ["--model", shape, *flags, "--setting", name] for name in SETTINGS},
            num_ranks=NUM_RANKS,
            num_rounds=num_rounds,
            num_starts=NUM_STARTS,
            timeout=TIMEOUT,
        )
        series += [Series(workload, setting, rounds) for setting, rounds in timed.items()]
    return Outcome(series)


def describe(sheet: Sheet) -> list[str]:
    """Each setting against a program without communication whose allocator keeps what is freed."""
    lines = []
    for workload in WORKLOADS:
        kept = sheet.find(workload, "alone, heap kept")
        for setting in SETTINGS:
            ratio = sheet.ratio(sheet.find(workload, setting), kept)
            if ratio is not None and setting != "alone, heap kept":
                lines.append(
                    f"{workload}, {setting}: {ratio.value:.3g}x (rounds"
                    f" {ratio.p10:.3g}-{ratio.p90:.3g}) of a step without communication in a"
                    " process whose allocator keeps what is freed"
                )
    return lines


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Sharded training of transformers of several shapes",
            num_ranks=NUM_RANKS,
            num_rounds=12,
            measure=measure,
            check=check_bars,
            describe=describe,
            workloads=tuple(WORKLOADS),
        )
    )
