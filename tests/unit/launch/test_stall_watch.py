"""Times at which the launcher reports a job that does not move, first and again."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kadril.launch.local.stall_watch import StallWatch
from kadril.observe.flight_record import HEADER, LAYOUT, MAGIC, RECORD, RECORDS_AT


def write_record(path: Path, number: int, begin: float, end: float = 0.0) -> None:
    """Write the record of a rank whose last call, of this number, began then, and has ended."""
    header = HEADER.pack(MAGIC, LAYOUT, 1, os.getpid(), 0, 2, 0, number)
    times = int(begin * 1e9), int(end * 1e9)
    call = RECORD.pack(number, 1, *times, 3, number, 2, 0, -1, b"loss")
    path.write_bytes(header.ljust(RECORDS_AT, b"\0") + call)


def test_a_rank_that_often_waits_is_still_reported_after_a_minute(tmp_path: Path) -> None:
    """Each stall that was over doubled the time, without end: the sixth took 4 minutes."""
    said: list[str] = []
    record = tmp_path / "rank-0.record"
    watch = StallWatch("job", said.append)
    watch.add(0, os.getpid(), {}, record)
    now = time.monotonic()
    for number in range(1, 10):
        write_record(record, number, now)
        now += min(7.5 * 2.0 ** (number - 1), 60.0) + 2.0
        watch.tick(now)
        assert sum("the job does not move" in line for line in said) == number
        write_record(record, number, now - 1.0, now)
        now += 2.0
        watch.tick(now)
