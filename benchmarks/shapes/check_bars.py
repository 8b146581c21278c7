"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/shapes/check_bars.py benchmarks/results/shapes-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, at_least, at_most
from harness.check import main
from harness.results import Results

__all__ = ["WORKLOADS", "check_bars"]

SHAPES = (
    "6 layers of 512, 16 words",
    "6 layers of 512, 128 words",
    "6 layers of 512, 512 words",
    "2 layers of 1024, 64 words",
    "12 layers of 256, 128 words",
)

# A shape, and whether Adam is the fused one.
WORKLOADS = {
    **{shape: (shape, True) for shape in SHAPES},
    **{f"{shape}, default Adam": (shape, False) for shape in SHAPES},
}


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for workload in WORKLOADS:
        alone = results.find(workload, "alone")
        for setting, what in (("kadril", "stage 2"), ("kadril, stage 1", "stage 1")):
            ratio = results.ratio(results.find(workload, setting), alone)
            text = f"{workload}, {what}: a step takes at most 1.03x of one without communication"
            yield at_most(text, ratio, 1.03)
        ratio = results.ratio(
            results.find(workload, "DDP, views"), results.find(workload, "kadril")
        )
        yield at_least(f"{workload}: at least the throughput of DDP with bucket views", ratio, 1.0)


if __name__ == "__main__":
    main(check_bars)
