"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/tiers/check_bars.py benchmarks/results/tiers-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.bars import Bar, Spread, at_least, at_most
from harness.check import main
from harness.results import Results, Series
from layouts import LAYOUTS, LINKS, SLOW, TRAINING, Layout, Link
from predictions import MOST_ERROR, errors_of, predict

from kadril.bench.figures import percentile

__all__ = ["check_bars", "describe"]

MPIS = ("Open MPI", "Open MPI, tuned", "MPICH")

# By layout: how many times as fast as a ring of all ranks. By volume 1.5, 1.75 and 1.17 are
# possible.
LEAST_GAIN = {"2x2": 1.4, "2x4": 1.6, "4x2": 1.1}


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for link in LINKS:
        for layout in LAYOUTS:
            yield from check_sums(results, link, layout)
    ddp = results.find(TRAINING, "DDP", "DDP, views")
    zero = results.find(TRAINING, "DDP + ZeRO", "DDP + ZeRO, views")
    for carrier in ("", ", gloo"):
        for name, peer, what in (
            ("DistributedOptimizer", ddp, "DDP"),
            ("sharded", zero, "DDP + ZeroRedundancyOptimizer"),
        ):
            setting = f"{name}{carrier}"
            text = f"{TRAINING}: {setting}, 1.4x the throughput of {what}"
            yield at_least(text, results.ratio(peer, results.find(TRAINING, setting)), 1.4)
    yield model_bar(results)


def check_sums(results: Results, link: Link, layout: Layout) -> Iterator[Bar]:
    """Yield the bars of a layout on a link."""
    workload = link.workload(layout, link.largest)
    name = f"{layout.name}, {link.name}"
    tiered = results.find(workload, "tiered")
    for setting in ("tiered", "tiered, gloo", "tiered, round robin"):
        yield volume_bar(results, link, layout, setting)
    bound = link.bound(layout.num_hosts, link.largest)
    for setting in ("tiered", "tiered, gloo"):
        shares = shares_of(bound, results.find(workload, setting))
        yield at_least(f"{name}: {setting}, 0.90 of the bound", shares, 0.9)
    least = LEAST_GAIN[layout.name]
    gloo = results.find(workload, "gloo")
    yield at_least(f"{name}: {least:g}x as fast as gloo", results.ratio(gloo, tiered), least)
    best = results.find(workload, *MPIS)
    bar = at_most(f"{name}: at most 1.05x of the best MPI", results.ratio(tiered, best), 1.05)
    yield bar._replace(measured=f"{bar.measured}; {best.setting}") if best else bar
    rounded = results.find(workload, "tiered, bf16")
    yield at_least(f"{name}: bf16 1.7x as fast", results.ratio(tiered, rounded), 1.7)
    dealt = results.find(workload, "tiered, round robin")
    yield at_most(f"{name}: round robin at most 1.05x", results.ratio(dealt, tiered), 1.05)
    small = link.workload(layout, min(link.sizes))
    ratio = results.ratio(results.find(small, "gloo"), results.find(small, "tiered"))
    yield at_least(f"{name}: 1 KiB not slower than gloo", ratio, 1.0)


def volume_bar(results: Results, link: Link, layout: Layout, setting: str) -> Bar:
    """Return the bar of what crosses the busiest uplink."""
    least = 2 * (layout.num_hosts - 1) / layout.num_hosts
    text = f"{layout.name}, {link.name}: {setting}, 1.03x of the least volume on every uplink"
    measured = results.facts.get(link.workload(layout, link.largest), {}).get(setting)
    found = None if measured is None else Spread(*[measured / least] * 3)
    return at_most(text, found, 1.03, lambda spread: f"{spread.value:.4f}x")


def shares_of(bound: float, series: Series | None) -> Spread | None:
    """The bound as a share of the time measured, round by round."""
    if series is None:
        return None
    return Spread.of([bound / percentile(one, 0.5) for one in series.rounds])


def model_bar(results: Results) -> Bar:
    """Return the bar of the cost model: its worst error on the slow link."""
    text = f"cost model: within {MOST_ERROR:.0%} of all large all-reduces at {SLOW.name}"
    errors = errors_of(results)
    if not errors:
        return Bar(text, "", "not measured")
    worst = max(errors, key=lambda name: abs(errors[name]))
    state = "reached" if abs(errors[worst]) <= MOST_ERROR else "missed"
    return Bar(text, f"{errors[worst]:+.1%} at worst ({worst})", state)


def describe(results: Results) -> list[str]:
    """Tell what the cost model predicts, and what was measured."""
    lines = []
    for link in LINKS:
        for layout in LAYOUTS:
            workload = link.workload(layout, link.largest)
            told = [
                f"{setting} {predicted * 1e3:.0f} ({series.p50 * 1e3:.0f})"
                for setting, predicted in predict(link, layout, link.largest, results.facts).items()
                if (series := results.find(workload, setting)) is not None
            ]
            if told:
                lines.append(f"{workload}: milliseconds predicted (measured): {', '.join(told)}")
    return lines


if __name__ == "__main__":
    main(check_bars)
