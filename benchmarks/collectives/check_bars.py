"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/collectives/check_bars.py benchmarks/results/collectives-<cpu>-<date>.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar
from harness.check import main
from harness.idle import idle_bar

from kadril.bench.figures import Ratio
from kadril.bench.options import format_size
from kadril.bench.peers import TITLES
from kadril.bench.report import Idleness, Report

__all__ = ["Found", "check_bars", "read_results"]

KIB, MIB = 1 << 10, 1 << 20

# engine, bytes, peer, how many times as fast: 2 ranks, one per core
PAIR_BARS = (
    ("kadril", 64 * MIB, "gloo", 4.0),
    ("kadril", 64 * MIB, "openmpi", 3.0),
    ("kadril", 64 * MIB, "copy", 0.8),
    ("zero-copy", 64 * MIB, "copy", 0.95),
    ("kadril", 16 * MIB, "openmpi", 1.2),
    ("kadril", 1 * MIB, "openmpi", 1.8),
    ("zero-copy", 1 * MIB, "openmpi", 4.0),
    ("kadril", 4, "openmpi", 1.0),
    ("kadril", 4, "gloo", 100.0),
)
CROWD_SIZES = (4, 64 * KIB, 1 * MIB, 16 * MIB, 64 * MIB)
CROWD_PEERS = ("gloo", "openmpi", "mpich")


class Found(NamedTuple):
    """The contents of a results file.

    Attributes:
        reports: by number of ranks.
        idle: of a world that has nothing to do.
    """

    reports: Mapping[int, Report]
    idle: Idleness | None


def check_bars(found: Found) -> Iterator[Bar]:
    """Yield all bars."""
    for engine, size, peer, least in PAIR_BARS:
        ratios = find_ratios(found.reports.get(2), engine, size, peer)
        pinned = [ratio for ratio in ratios if ratio.setting == "pinned"]
        text = f"2 ranks, {format_size(size)}: {engine} at least {least:g}x {TITLES[peer]}"
        yield judge(text, pinned, least)
    for size in CROWD_SIZES:
        for peer in CROWD_PEERS:
            ratios = find_ratios(found.reports.get(4), "kadril", size, peer)
            text = f"4 ranks, {format_size(size)}: kadril faster than {TITLES[peer]}"
            yield judge(text, ratios, 1.0)
    yield idle_bar("an idle world", found.idle)


def find_ratios(report: Report | None, engine: str, size: int, peer: str) -> list[Ratio]:
    """Return the ratios of an engine to a peer at all-reduce, in each setting of the engine."""
    return [
        ratio
        for ratio in (report.ratios if report else ())
        if (ratio.collective, ratio.engine, ratio.num_bytes, ratio.peer)
        == ("allreduce", engine, size, peer)
    ]


def judge(text: str, found: list[Ratio], least: float) -> Bar:
    """Return the bar of a ratio: the best of kadril's settings against the best of the peer's."""
    if not found:
        return Bar(text, "", "not measured")
    best = max(found, key=lambda ratio: ratio.value)
    measured = (
        f"{best.value:.3g}x (rounds {best.p10:.3g}-{best.p90:.3g};"
        f" {best.setting}, the peer {best.peer_setting})"
    )
    return Bar(text, measured, "reached" if best.value >= least else "missed")


def read_results(path: Path) -> Found:
    """Read what `run.py` has written."""
    fields = json.loads(path.read_text())
    texts = {int(name): json.dumps(report) for name, report in fields["reports"].items()}
    reports = {num_ranks: Report.from_json(text) for num_ranks, text in texts.items()}
    idle = fields["idle_world"]
    return Found(reports, Idleness(**idle) if idle else None)


if __name__ == "__main__":
    main(check_bars, read_results)
