"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/sharded/check_bars.py benchmarks/results/sharded-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, Spread, at_least, at_most
from harness.check import main
from harness.results import Results

from kadril.bench.figures import percentile

__all__ = ["check_bars", "peak_of", "rest_of"]

# How many times the throughput of whom; of several settings, of the better one.
PEERS = (
    (1.5, ("DDP + ZeRO", "DDP + ZeRO, views")),
    (2.0, ("FSDP2",)),
    (2.5, ("DeepSpeed ZeRO-2",)),
)

# Steps with gradients that leave inside of compiled graphs, beside those of hooks.
COMPILED = ("kadril, compiled", "kadril, inductor")


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for name in ("mlp", "transformer"):
        for kind in ("default", "fused"):
            workload = f"{name}, {kind} Adam"
            kadril = results.find(workload, "kadril")
            text = f"{workload}: a step takes less than one without communication"
            yield at_most(text, results.ratio(kadril, results.find(workload, "alone")), 1.0)
            for setting in COMPILED:
                text = f"{workload}: a step of {setting} takes no longer than an eager one"
                yield at_most(text, results.ratio(results.find(workload, setting), kadril), 1.0)
            for least, settings in PEERS:
                better = results.find(workload, *settings)
                if better is None and f"{workload}: {settings[0]}" in results.missing:
                    continue  # it is not installed; the results say so
                text = f"{workload}: at least {least:g}x the throughput of {settings[0]}"
                yield at_least(text, results.ratio(better, kadril), least)
    for model in ("transformer", "wide transformer"):
        total, growth = memory_ratios(results, model)
        yield at_most(f"{model}: memory of the host at most 0.6x of DDP's", total, 0.6)
        text = f"{model}: what training adds to the memory of the host at most 0.6x of DDP's"
        yield at_most(text, growth, 0.6)
    text = "a compiled pass with 108 MiB of gradients adds at most 70 MiB to a rank"
    yield at_most(text, compiled_peak(results), 70, show_mebibytes)


def rest_of(results: Results, model: str, setting: str) -> list[tuple[int, int]]:
    """PSS of all ranks between steps, and how much of it training added; look by look."""
    looks = []
    for ranks in results.facts["memory"][model][setting]:
        after = sum(rank["after"] for rank in ranks)
        looks.append((after, after - sum(rank["before"] for rank in ranks)))
    return looks


def memory_ratios(results: Results, model: str) -> tuple[Spread | None, Spread | None]:
    """Both under kadril, as parts of those under DDP."""
    measured = results.facts.get("memory", {}).get(model, {})
    if "kadril" not in measured or "DDP" not in measured:
        return None, None
    looks = zip(rest_of(results, model, "kadril"), rest_of(results, model, "DDP"), strict=True)
    ratios = [[ours / theirs for ours, theirs in zip(*look, strict=True)] for look in looks]
    total, growth = (
        Spread(median(each), min(each), max(each)) for each in zip(*ratios, strict=True)
    )
    return total, growth


def peak_of(results: Results, setting: str) -> float:
    """Bytes by which a pass raises the memory of a rank: the median, on the worst rank."""
    return max(percentile(rank["peaks"], 0.5) for rank in results.facts["step"][setting])


def compiled_peak(results: Results) -> Spread | None:
    """The same of compiled passes under kadril, in MiB, with the best and the worst pass."""
    ranks = results.facts.get("step", {}).get("kadril, compiled")
    if ranks is None:
        return None
    peaks = [peak / 2**20 for rank in ranks for peak in rank["peaks"]]
    return Spread(peak_of(results, "kadril, compiled") / 2**20, min(peaks), max(peaks))


def show_mebibytes(found: Spread) -> str:
    """Memory as text."""
    return f"{found.value:.0f} MiB (passes {found.p10:.0f}-{found.p90:.0f})"


if __name__ == "__main__":
    main(check_bars)
