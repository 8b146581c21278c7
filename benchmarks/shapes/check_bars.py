"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/shapes/check_bars.py benchmarks/results/shapes-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, at_least, at_most, print_bars
from kadril.bench.sheet import Sheet

__all__ = ["WORKLOADS", "check_bars", "main"]

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


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    for workload in WORKLOADS:
        alone = sheet.find(workload, "alone")
        for setting, what in (("kadril", "stage 2"), ("kadril, stage 1", "stage 1")):
            ratio = sheet.ratio(sheet.find(workload, setting), alone)
            text = f"{workload}, {what}: a step takes at most 1.03x of one without communication"
            yield at_most(text, ratio, 1.03)
        ratio = sheet.ratio(sheet.find(workload, "DDP, views"), sheet.find(workload, "kadril"))
        yield at_least(f"{workload}: at least the throughput of DDP with bucket views", ratio, 1.0)


def main(argv: list[str]) -> int:
    """Check each file and give the exit code."""
    if not argv:
        print(__doc__)
        return 2
    sheets = [Sheet.from_json(Path(name).read_text()) for name in argv]
    are_reached = [print_bars(list(check_bars(sheet))) for sheet in sheets]
    return 0 if all(are_reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
