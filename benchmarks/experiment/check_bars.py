"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/experiment/check_bars.py benchmarks/results/experiment-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, at_least
from harness.check import main
from harness.results import Results

__all__ = ["NEON", "check_bars"]

# What neon's own code of October 2014 measured: costs, rates in percent, seconds.
NEON = {
    "cnn": {
        "costs": [0.31188, 0.16869],
        "misclassified": {"train": 17.98333, "test": 17.75},
        "seconds": 166.0,
    },
    "gb": {
        "costs": [61609.00, 137141.14, 124326.50, 0.58371, 0.22704],
        "misclassified": {"train": 0.33333, "test": 49.38},
        "seconds": 55.0,
    },
}


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for workload, least in (("cnn step", 1.7), ("gb step", 1.7), ("gb pretraining step", 1.7)):
        one, two = (results.find(workload, name) for name in ("1 rank", "2 ranks"))
        ratio = results.ratio(one, two)
        yield at_least(f"{workload}: 2 ranks at least {least:g}x one", ratio, least)
    runs = results.facts.get("runs", {})
    for kind, neon in NEON.items():
        for ranks, run in sorted(runs.get(kind, {}).items()):
            costs = costs_of(kind, run)
            worst = max(abs(a / b - 1) for a, b in zip(costs, neon["costs"], strict=True))
            rates = run["misclassified"][0]
            off = max(abs(rates[name] - rate) for name, rate in neon["misclassified"].items())
            yield Bar(
                f"{kind} on {ranks} rank(s): costs are neon's to 4 digits, rates to 0.1 %",
                f"costs off by {worst:.1e} at most, rates by {off:.3f} %",
                "reached" if worst < 1e-4 and off < 0.1 else "missed",
            )
        if "1" in runs.get(kind, {}):
            run = runs[kind]["1"]
            times = neon["seconds"] / (run["seconds"] + run["prediction_seconds"])
            yield Bar(
                f"{kind} on 1 rank: at least 10x as fast as neon",
                f"{times:.1f}x",
                "reached" if times >= 10 else "missed",
            )
    for kind, by_ranks in results.facts.get("memory", {}).items():
        one = by_ranks["1"]
        shares = {ranks: size / one for ranks, size in by_ranks.items()}
        yield Bar(
            f"{kind}: activations of a rank shrink as 1 / ranks, within 35 % for the halos",
            ", ".join(f"{ranks}: {share:.2f}" for ranks, share in shares.items()),
            "reached" if all(s * int(n) <= 1.35 for n, s in shares.items()) else "missed",
        )


def costs_of(kind: str, run: dict[str, list[dict[str, float]]]) -> list[float]:
    """Return the costs of neon's table: of each layer's last epoch of pretraining, then all."""
    history = run["history"]
    last = {each["layer"]: each["cost"] for each in history if each["kind"] == "pretrain"}
    return [*last.values(), *(each["cost"] for each in history if each["kind"] == "train")]


if __name__ == "__main__":
    main(check_bars)
