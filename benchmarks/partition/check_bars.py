"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/partition/check_bars.py benchmarks/results/partition-<cpu>-<date>.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, Spread, at_least, at_most
from harness.check import main
from harness.results import Results

__all__ = ["check_bars"]


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    two = results.find("conv", "kadril, 2 ranks")
    for least, threads in ((2.2, "1 thread"), (1.4, "2 threads")):
        one = results.find("conv", f"torch, 1 rank, {threads}")
        text = f"Conv2d forward and backward: at least {least:g}x one rank with {threads}"
        yield at_least(text, results.ratio(one, two), least)
    for workload in ("sum of 8 MiB", "sum of 4 KiB", "halo of 128 KiB"):
        for peer in ("mpi4py", "gloo"):
            ratio = results.ratio(results.find(workload, peer), results.find(workload, "kadril"))
            yield at_least(f"{workload}: at least 3x as fast as {peer}", ratio, 3.0)
    copying = results.find("repartition of 32 MiB", "copy")
    moving = results.find("repartition of 32 MiB", "kadril")
    text = "repartition of 32 MiB: at most 1.5x of a plain copy"
    yield at_most(text, results.ratio(moving, copying), 1.5)
    setups = list(zip(*results.facts.get("setup", []), strict=True))  # kinds of layers, then ranks
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


if __name__ == "__main__":
    main(check_bars)
