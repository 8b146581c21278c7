"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/sharded/check_bars.py benchmarks/results/sharded-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, Spread, at_least, at_most, print_bars
from kadril.bench.sheet import Sheet

__all__ = ["check_bars", "main"]


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    for name in ("mlp", "transformer"):
        for kind in ("default", "fused"):
            workload = f"{name}, {kind} Adam"
            kadril = sheet.find(workload, "kadril")
            text = f"{workload}: a step takes less than one without communication"
            yield at_most(text, sheet.ratio(kadril, sheet.find(workload, "alone")), 1.0)
            peers = ((1.5, ("DDP + ZeRO", "DDP + ZeRO, views")), (2.0, ("FSDP2",)))
            for least, settings in peers:
                better = sheet.find(workload, *settings)
                text = f"{workload}: at least {least:g}x the throughput of {settings[0]}"
                yield at_least(text, sheet.ratio(better, kadril), least)
    memory = sheet.facts.get("memory", {})
    text = "memory of the host at most 0.6x of DDP's"
    yield at_most(text, memory_ratio(memory), 0.6)


def memory_ratio(memory: dict[str, list[dict[str, int]]]) -> Spread | None:
    """PSS of all ranks under kadril, as part of that under DDP."""
    if "kadril" not in memory or "DDP" not in memory:
        return None
    total = {setting: sum(rank["after"] for rank in ranks) for setting, ranks in memory.items()}
    ratio = total["kadril"] / total["DDP"]
    return Spread(ratio, ratio, ratio)


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
