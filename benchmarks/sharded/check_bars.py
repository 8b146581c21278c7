"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/sharded/check_bars.py benchmarks/results/sharded-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from kadril.bench.bars import Bar, Spread, at_least, at_most, print_bars
from kadril.bench.figures import percentile
from kadril.bench.sheet import Sheet

__all__ = ["check_bars", "main", "peak_of", "rest_of"]

# How many times the throughput of whom; of several settings, of the better one.
PEERS = (
    (1.5, ("DDP + ZeRO", "DDP + ZeRO, views")),
    (2.0, ("FSDP2",)),
    (2.5, ("DeepSpeed ZeRO-2",)),
)


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    for name in ("mlp", "transformer"):
        for kind in ("default", "fused"):
            workload = f"{name}, {kind} Adam"
            kadril = sheet.find(workload, "kadril")
            text = f"{workload}: a step takes less than one without communication"
            yield at_most(text, sheet.ratio(kadril, sheet.find(workload, "alone")), 1.0)
            for least, settings in PEERS:
                better = sheet.find(workload, *settings)
                if better is None and f"{workload}: {settings[0]}" in sheet.missing:
                    continue  # it is not installed; the sheet says so
                text = f"{workload}: at least {least:g}x the throughput of {settings[0]}"
                yield at_least(text, sheet.ratio(better, kadril), least)
    for model in ("transformer", "wide transformer"):
        total, growth = memory_ratios(sheet, model)
        yield at_most(f"{model}: memory of the host at most 0.6x of DDP's", total, 0.6)
        text = f"{model}: what training adds to the memory of the host at most 0.6x of DDP's"
        yield at_most(text, growth, 0.6)
    text = "a compiled pass with 108 MiB of gradients adds at most 70 MiB to a rank"
    yield at_most(text, compiled_peak(sheet), 70, show_mebibytes)


def rest_of(sheet: Sheet, model: str, setting: str) -> list[tuple[int, int]]:
    """PSS of all ranks between steps, and how much of it training added; look by look."""
    looks = []
    for ranks in sheet.facts["memory"][model][setting]:
        after = sum(rank["after"] for rank in ranks)
        looks.append((after, after - sum(rank["before"] for rank in ranks)))
    return looks


def memory_ratios(sheet: Sheet, model: str) -> tuple[Spread | None, Spread | None]:
    """Both under kadril, as parts of those under DDP."""
    measured = sheet.facts.get("memory", {}).get(model, {})
    if "kadril" not in measured or "DDP" not in measured:
        return None, None
    looks = zip(rest_of(sheet, model, "kadril"), rest_of(sheet, model, "DDP"), strict=True)
    ratios = [[ours / theirs for ours, theirs in zip(*look, strict=True)] for look in looks]
    total, growth = (
        Spread(median(each), min(each), max(each)) for each in zip(*ratios, strict=True)
    )
    return total, growth


def peak_of(sheet: Sheet, setting: str) -> float:
    """Bytes by which a pass raises the memory of a rank: the median, on the worst rank."""
    return max(percentile(rank["peaks"], 0.5) for rank in sheet.facts["step"][setting])


def compiled_peak(sheet: Sheet) -> Spread | None:
    """The same of compiled passes under kadril, in MiB, with the best and the worst pass."""
    ranks = sheet.facts.get("step", {}).get("kadril, compiled")
    if ranks is None:
        return None
    peaks = [peak / 2**20 for rank in ranks for peak in rank["peaks"]]
    return Spread(peak_of(sheet, "kadril, compiled") / 2**20, min(peaks), max(peaks))


def show_mebibytes(found: Spread) -> str:
    """Memory as text."""
    return f"{found.value:.0f} MiB (passes {found.p10:.0f}-{found.p90:.0f})"


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
