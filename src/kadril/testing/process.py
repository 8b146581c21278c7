"""A process, seen from outside: how it is, how it ended, and where it is stuck."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["ask_for_stacks", "describe_exit", "read_tail", "state_of"]

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "sleeping",
    "T": "stopped",
    "t": "traced",
    "Z": "dead",
}

# How much of a rank's output goes into a report.
TAIL_BYTES = 64 * 1024


def state_of(pid: int) -> str:
    """Return how a process is: "running", "sleeping", "stopped", "traced" or "dead"."""
    try:
        # The name, in parentheses, may hold anything; the state is the first word behind it.
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "dead"
    return STATES.get(letter, "dead")


def describe_exit(code: int) -> str:
    """Say how a process ended, from its return code, where a signal is negative."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def ask_for_stacks(pid: int, path: Path, stack_signal: int, patience: float = 1.0) -> str:
    """Have a process write its stacks to its file, and read them; empty if it cannot answer."""
    start = path.stat().st_size if path.exists() else 0
    try:
        os.kill(pid, stack_signal)
    except ProcessLookupError:
        return ""
    # The handler writes line by line and tells nobody when it is done: done is when it writes no
    # more.
    size, deadline = start, time.monotonic() + patience
    while time.monotonic() < deadline:
        time.sleep(0.05)
        grown = path.stat().st_size if path.exists() else start
        if grown == size > start:
            break
        size = grown
    return read_tail(path, start)


def read_tail(path: Path, start: int = 0) -> str:
    """Return the text of a file from an offset on; of a long one, its end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
