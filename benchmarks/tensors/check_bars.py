"""Compare a results file of `run.py` with the bars that kadril set itself.

python benchmarks/tensors/check_bars.py benchmarks/results/tensors-<cpu>-<date>.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from harness.bars import Bar, at_most, show_seconds
from harness.check import main
from harness.idle import idle_bar
from harness.results import Results

from kadril.bench.report import Idleness
from kadril.bench.table import format_seconds

__all__ = ["check_bars"]

# workload, setting, seconds at most
BARS = (
    ("500 tensors of 1000 floats", "kadril", 6e-3),
    ("500 tensors of 1000 floats", "kadril, grouped", 3e-3),
    ("10 000 tensors of 16 floats", "kadril", 150e-3),
    ("one float", "kadril", 60e-6),
)


def check_bars(results: Results) -> Iterator[Bar]:
    """Yield all bars."""
    for workload, setting, most in BARS:
        series = results.find(workload, setting)
        text = f"{workload}, {setting}: at most {format_seconds(most)}"
        yield at_most(text, series.spread if series else None, most, show_seconds)
    idle = results.facts.get("idle_world")
    yield idle_bar("a world that only called init()", Idleness(**idle) if idle else None)


if __name__ == "__main__":
    main(check_bars)
