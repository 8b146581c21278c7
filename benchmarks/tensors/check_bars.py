"""Hold a results file of `run.py` against the bars that kadril set itself.

    python benchmarks/tensors/check_bars.py benchmarks/results/tensors-<cpu>-<date>.json

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kadril.bench.bars import Bar, at_most, print_bars, show_seconds
from kadril.bench.report import Idleness
from kadril.bench.sheet import Sheet
from kadril.bench.table import format_seconds

__all__ = ["check_bars", "main"]

# workload, setting, seconds at most
BARS = (
    ("500 tensors of 1000 floats", "kadril", 6e-3),
    ("500 tensors of 1000 floats", "kadril, grouped", 3e-3),
    ("10 000 tensors of 16 floats", "kadril", 150e-3),
    ("one float", "kadril", 60e-6),
)
IDLE_SHARE = 0.001


def check_bars(sheet: Sheet) -> Iterator[Bar]:
    """All bars."""
    for workload, setting, most in BARS:
        series = sheet.find(workload, setting)
        text = f"{workload}, {setting}: at most {format_seconds(most)}"
        yield at_most(text, series.spread if series else None, most, show_seconds)
    text = f"a world that only called init(): at most {IDLE_SHARE:.1%} of a core per rank"
    if "idle_world" not in sheet.facts:
        yield Bar(text, "", "not measured")
        return
    idle = Idleness(**sheet.facts["idle_world"])
    measured = f"{idle.share:.4%} ({idle.cpu * 1e3:.2f} ms in {idle.wall:.1f} s)"
    yield Bar(text, measured, "reached" if idle.share <= IDLE_SHARE else "missed")


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
