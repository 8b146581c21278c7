"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/partition/check_bars.py benchmarks/results/partition-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, Spread, at_least, at_most, print_bars
from kadril.bench.sheet import Sheet

__all__ = ["check_bars", "main"]


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    two = sheet.find("conv", "kadril, 2 ranks")
    for least, threads in ((2.2, "1 thread"), (1.4, "2 threads")):
        one = sheet.find("conv", f"torch, 1 rank, {threads}")
        text = f"Conv2d forward and backward: at least {least:g}x one rank with {threads}"
        yield at_least(text, sheet.ratio(one, two), least)
    for workload in ("sum of 8 MiB", "sum of 4 KiB", "halo of 128 KiB"):
        for peer in ("mpi4py", "gloo"):
            ratio = sheet.ratio(sheet.find(workload, peer), sheet.find(workload, "kadril"))
            yield at_least(f"{workload}: at least 3x as fast as {peer}", ratio, 3.0)
    copying = sheet.find("repartition of 32 MiB", "copy")
    moving = sheet.find("repartition of 32 MiB", "kadril")
    text = "repartition of 32 MiB: at most 1.5x of a plain copy"
    yield at_most(text, sheet.ratio(moving, copying), 1.5)
    setups = list(zip(*sheet.facts.get("setup", []), strict=True))  # kinds of layers, then ranks
    made = spread(
        [max(each["make"] + each["first"] - each["second"] for each in ranks) for ranks in setups]
    )
    text = "64 layers: setup costs at most 50 ms"
    yield at_most(text, made, 0.05, lambda found: f"{found.value * 1e3:.3g} ms")
    first = spread([max(each["first"] / each["second"] for each in ranks) for ranks in setups])
    yield at_most("64 layers: the first call takes at most twice the second", first, 2.0)


def spread(values: list[float]) -> Spread | None:
    """The median; the values are those of the worst rank."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


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
