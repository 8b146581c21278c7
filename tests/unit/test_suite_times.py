"""The summary at the end of `make test`: sessions together, and what failed in any of them."""

from __future__ import annotations

from pathlib import Path

from suite_times import SuiteTimes, TimedTest, read_times


def test_sessions_are_added_up(tmp_path: Path) -> None:
    first = [
        TimedTest("tests/a/t.py::x", "passed", 1.0),
        TimedTest("tests/a/t.py::x", "failed", 2.0),
    ]
    last = [
        TimedTest("tests/b/t.py::y", "passed", 4.0),
        TimedTest("tests/b/t.py::z", "skipped", 0.0),
    ]
    for name, tests in (("first", first), ("last", last)):
        SuiteTimes(tests, 30.0).write(tmp_path / f"{name}.times.json")
    assert read_times(sorted(tmp_path.iterdir())).lines(num_slowest=2) == [
        "3 tests, 1 failed; 7 s of sessions' time, 1.0 min of CPU time",
        "by folder: tests/b 4 s, tests/a 3 s",
        "   4.0 s  tests/b/t.py::y",
        "   3.0 s  tests/a/t.py::x",
        "failed: tests/a/t.py::x",
    ]
