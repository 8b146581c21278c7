"""Python stacks of running ranks, without a debugger: each rank writes its own when asked.

`kadril.init()` has `faulthandler` write the stacks of all threads to a file when
a signal comes, also while the GIL is held. A rank that is stopped writes when it goes on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import kadril
from kadril.frameworks import framework_folders
from kadril.observe.flight_record import FlightRecord

__all__ = ["ask_for_stacks", "program_line", "stacks_path"]

FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def stacks_path(record: Path) -> Path:
    """Return where the rank with this record writes its stacks."""
    if record.is_relative_to("/proc"):
        return record  # in its memory: behind the record
    return record.with_suffix(".stacks")


def ask_for_stacks(records: Mapping[Path, FlightRecord], timeout: float = 1.0) -> dict[Path, str]:
    """Return the stacks of the ranks with these records, for those that answer in time."""
    sizes = {}
    for path, record in records.items():
        with suppress(OSError):
            size = stacks_path(path).stat().st_size
            if record.stack_signal and catches(record.pid, record.stack_signal):
                os.kill(record.pid, record.stack_signal)
                sizes[path] = size
    stacks: dict[Path, str] = {}
    deadline = time.monotonic() + timeout
    lengths: dict[Path, int] = {}
    while sizes and time.monotonic() < deadline:
        time.sleep(0.02)  # the answer is a file that grows: nobody wakes us
        for path, size in list(sizes.items()):
            try:
                length = stacks_path(path).stat().st_size
                if length > size and length == lengths.get(path):
                    stacks[path] = read_end(stacks_path(path), size)
                    del sizes[path]
                lengths[path] = length
            except OSError:
                del sizes[path]  # the rank has ended, and its memory with it
    return stacks


def read_end(path: Path, start: int) -> str:
    """Return the text of a file from an offset on."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def program_line(stacks: str) -> str:
    """Return "train.py:33 in step", the program's own line in the stack of the main thread.

    Empty where there is none. The main thread is the last one that `faulthandler` writes.
    """
    own = (str(Path(kadril.__file__).parent), *framework_folders())
    threads = re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE)
    for line in threads[-1].splitlines():
        frame = FRAME.match(line)
        if frame and not frame[1].startswith(own) and not frame[1].startswith("<frozen"):
            return f"{frame[1]}:{frame[2]} in {frame[3]}"
    return ""
