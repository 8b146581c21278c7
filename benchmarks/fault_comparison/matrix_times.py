"""Make figures of what `make faults` measured: from each fault of the matrix to the errors.

python benchmarks/fault_comparison/matrix_times.py build/fault-times.jsonl [--output DIR]

A fault has the times of all its tests that let a signal or a fault point strike; what the bound is
about otherwise (calls that differ, strangers, launchers) is asserted by its tests, and has none.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("benchmarks", "tests", "tests/faults")]

from fault_matrix import MATRIX  # noqa: E402
from fault_times import read_fault_times  # noqa: E402
from harness.claim import RESULTS  # noqa: E402
from harness.results import Results, Series  # noqa: E402

from kadril.bench.report import describe_surroundings  # noqa: E402

__all__ = ["THEME"]

THEME = "fault_matrix"
MOST_RANKS = 4  # of the tests with shared memory, which are nearly all


def measured_series(path: Path) -> list[Series]:
    """Return a series for each fault of which times were written, in the order of the matrix."""
    times: dict[str, list[list[float]]] = collections.defaultdict(list)
    for test, delays in read_fault_times(path):
        for fault in MATRIX:
            if test in fault.tests:
                times[fault.number].append([max(delays)])
    return [
        Series(fault.number, "kadril", times[fault.number])
        for fault in MATRIX
        if fault.number in times
    ]


def main() -> None:
    """Write a results file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS)
    words = parser.parse_args()
    about = describe_surroundings()
    results = Results(
        theme=THEME,
        title="From a fault to the error of the last survivor",
        date=about["date"],
        command="make faults",
        num_ranks=MOST_RANKS,
        machine=about["machine"],
        load={**about["load"], "end": os.getloadavg()},
        versions=about["versions"],
        missing={},
        facts={},
        series=measured_series(words.times),
    )
    print(results.write(words.output, []))


if __name__ == "__main__":
    main()
