"""Say where the time of a suite went: of one session, or of all that share the tests.

    python tests/suite_times.py DIRECTORY

prints one summary of all sessions that wrote their times there (`pytest --times DIRECTORY`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["SuiteTimes", "TimedTest", "cpu_of_session", "read_times"]


class TimedTest(NamedTuple):
    """Outcome of a set-up, a call or a tear-down of a test, and its duration in seconds."""

    test: str
    outcome: str
    seconds: float


@dataclasses.dataclass
class SuiteTimes:
    """Times of one or more sessions."""

    tests: list[TimedTest]
    cpu_seconds: float

    def write(self, path: Path) -> None:
        """Write them for `read_times`."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    def lines(self, num_slowest: int) -> list[str]:
        """Return the summary: all together, by folder, the slowest tests, those that failed."""
        tests: dict[str, float] = defaultdict(float)
        folders: dict[str, float] = defaultdict(float)
        outcomes: dict[str, set[str]] = defaultdict(set)
        for test, outcome, seconds in self.tests:
            tests[test] += seconds
            folders[str(Path(test.partition("::")[0]).parent)] += seconds
            outcomes[test].add(outcome)
        failed = [test for test, found in outcomes.items() if found & {"failed", "error"}]
        total = f"{len(tests)} tests, {len(failed)} failed; {sum(tests.values()):.0f} s"
        return [
            f"{total} of sessions' time, {self.cpu_seconds / 60:.1f} min of CPU time",
            "by folder: " + ", ".join(f"{name} {took:.0f} s" for name, took in most(folders)),
            *(f"{took:6.1f} s  {name}" for name, took in most(tests)[:num_slowest]),
            *(f"failed: {name}" for name in failed),
        ]


def most(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the names with their seconds, the slowest first."""
    return sorted(seconds.items(), key=lambda entry: entry[1], reverse=True)


def cpu_of_session() -> float:
    """Return the CPU time of this process and of those it waited for, in seconds."""
    return sum(os.times()[:4])


def read_times(paths: Iterable[Path]) -> SuiteTimes:
    """Return the times of all sessions that wrote these files."""
    sessions = [json.loads(path.read_text()) for path in paths]
    return SuiteTimes(
        tests=[TimedTest(*test) for session in sessions for test in session["tests"]],
        cpu_seconds=sum(session["cpu_seconds"] for session in sessions),
    )


def main(directory: str, num_slowest: int = 10) -> None:
    """Print the summary of all sessions that wrote to a directory."""
    times = read_times(sorted(Path(directory).glob("*.times.json")))
    sys.stdout.write("\n".join(["", "== all sessions", *times.lines(num_slowest), ""]))


if __name__ == "__main__":
    main(sys.argv[1])
