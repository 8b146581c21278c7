"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/crowded/check_bars.py benchmarks/results/crowded-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, at_least, print_bars
from kadril.bench.sheet import Sheet

__all__ = ["WORKLOADS", "check_bars", "main"]

# A model of `sharded/`, and on how many ranks.
WORKLOADS = {
    "MLP, 4 ranks": ("mlp", 4),
    "MLP, 8 ranks": ("mlp", 8),
    "transformer, 4 ranks": ("12 layers of 256, 128 words", 4),
    "transformer, 8 ranks": ("12 layers of 256, 128 words", 8),
}


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    for workload in WORKLOADS:
        better = sheet.find(workload, "DDP", "DDP, views")
        for setting, what in (("kadril", "POS_Trainer"), ("kadril, whole", "DistributedOptimizer")):
            ratio = sheet.ratio(better, sheet.find(workload, setting))
            text = f"{workload}, {what}: at least 1.5x the throughput of DDP on gloo"
            yield at_least(text, ratio, 1.5)


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
