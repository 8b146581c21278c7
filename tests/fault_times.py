"""Times that survivors took from a fault to their error: one line for each use of `Ranks`.

`pytest --fault-times FILE` adds lines to a file, and `matrix_times.py` of
`benchmarks/fault_comparison` makes figures of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from kadril.testing.outcome import Outcome

__all__ = ["read_fault_times", "writer_of_fault_times"]


def writer_of_fault_times(path: Path) -> Callable[[list[Outcome]], None]:
    """Return an observer for `Ranks` that writes what the running test has seen.

    Only ranks that raised count: one that was stopped and went on has met no error.
    """

    def write(outcomes: list[Outcome]) -> None:
        delays = [
            outcome.delay
            for outcome in outcomes
            if outcome.delay is not None and outcome.error is not None
        ]
        if delays:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
            with path.open("a") as file:
                file.write(json.dumps({"test": test, "delays": delays}) + "\n")

    return write


def read_fault_times(path: Path) -> Iterable[tuple[str, list[float]]]:
    """Read such a file: the name of each test, without its parameters, and its delays."""
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        yield fields["test"].partition("[")[0].removeprefix("tests/"), fields["delays"]
