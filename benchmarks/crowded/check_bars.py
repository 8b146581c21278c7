"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/crowded/check_bars.py benchmarks/results/crowded-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, at_least
from harness.check import main
from harness.results import Results

__all__ = ["WORKLOADS", "check_bars"]

# A model of `sharded/`, and on how many ranks.
WORKLOADS = {
    "MLP, 4 ranks": ("mlp", 4),
    "MLP, 8 ranks": ("mlp", 8),
    "transformer, 4 ranks": ("12 layers of 256, 128 words", 4),
    "transformer, 8 ranks": ("12 layers of 256, 128 words", 8),
}


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for workload in WORKLOADS:
        better = results.find(workload, "DDP", "DDP, views")
        for setting, what in (("kadril", "POS_Trainer"), ("kadril, whole", "DistributedOptimizer")):
            ratio = results.ratio(better, results.find(workload, setting))
            text = f"{workload}, {what}: at least 1.5x the throughput of DDP on gloo"
            yield at_least(text, ratio, 1.5)


if __name__ == "__main__":
    main(check_bars)
