"""Times at which the launcher reports a job that does not move, first and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kadril.launch.local.stall_watch import LOOK_EVERY, StallWatch
from kadril.observe.flight_record import HEADER, LAYOUT, MAGIC, RECORD, RECORDS_AT


def write_record(
    path: Path, number: int, begin: float, end: float = 0.0, pid: int = 0, stack_signal: int = 0
) -> None:
    """Write the record of a rank whose last call, of this number, began then, and has ended."""
    header = HEADER.pack(MAGIC, LAYOUT, 1, pid or os.getpid(), 0, 2, stack_signal, number)
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
        now += min(6.5 * 2.0 ** (number - 1), 60.0) + 2.0
        watch.tick(now)
        assert sum("the job does not move" in line for line in said) == number
        write_record(record, number, now - 1.0, now)
        now += 2.0
        watch.tick(now)


STOPPED = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: None)
print(flush=True)
signal.pause()
"""


def test_a_report_comes_within_ten_seconds_at_the_worst(tmp_path: Path) -> None:
    """A wait that a look just misses, and a rank that never writes its stacks: more than ten."""
    said: list[str] = []
    record = tmp_path / "rank-0.record"
    rank = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE)
    with rank:
        assert rank.stdout is not None
        assert rank.stdout.readline()
        rank.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        write_record(record, 1, begin, pid=rank.pid, stack_signal=signal.SIGUSR2)
        record.with_suffix(".stacks").touch()
        watch = StallWatch("job", said.append)
        watch.add(0, rank.pid, {}, record)
        late = watch.after - 0.01  # the first look comes then
        while not said:
            started = time.monotonic()
            watch.tick(begin + late)
            if not said:
                watch._look_at, late = -1.0, late + LOOK_EVERY
        took = time.monotonic() - started
        rank.kill()
    assert took >= 1.0  # for stacks that do not come
    assert late + took < 9.5
