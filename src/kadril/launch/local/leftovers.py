"""Find and end what is left of a job: its processes, then its directory.

A process belongs to a job when it was started with the job's KADRIL_JOB in its environment, which
children inherit however often they fork, or when it lives in the session of one of its ranks.

Run as a program, this file is the *guardian* of a job: it waits until the launcher is gone, and
then does what the launcher could not.

    launcher ----- pipe: pid of each rank, one per line -----> guardian     -pid: it is forgotten
       |                                                           |
       X  killed: the kernel closes the pipe  ------- EOF -------> kill all, sweep, remove directory

It must start fast and depend on nothing that the user may have changed, so it imports little of the
standard library and nothing of kadril.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Leftover", "end_leftovers", "find_leftovers", "kill_group", "remove_directory"]


# Most seconds to wait for a process that loads its next program.
EXEC_TIME = 0.5


class Leftover(NamedTuple):
    """A process that belongs to a job."""

    pid: int
    rank: str  # of the rank that started it, or an empty string where it does not say
    command: str


def find_leftovers(job: str, sessions: Collection[int] = ()) -> list[Leftover]:
    """Return the processes of this user that belong to the job and are not dead.

    Args:
        job: value of KADRIL_JOB; where it is empty, only the sessions count.
        sessions: sessions of the job's ranks, for processes that cleared their environment.
    """
    return [leftover for _, leftover in _search(job, sessions)]


def end_leftovers(job: str, sessions: Collection[int] = (), timeout: float = 2.0) -> list[Leftover]:
    """Kill the processes of a job until there are none, and return which they were.

    Looks again after each pass, since a process may fork while it is looked for.
    """
    ended: dict[int, Leftover] = {}
    deadline = time.monotonic() + timeout
    while True:
        found = 0
        for descriptor, leftover in _search(job, sessions):
            found += 1
            ended[leftover.pid] = leftover
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not found or time.monotonic() > deadline:
            return list(ended.values())
        time.sleep(0.005)  # a killed process needs a moment to go


def _search(job: str, sessions: Collection[int]) -> Iterator[tuple[int, Leftover]]:
    mark = b"KADRIL_JOB=" + job.encode()
    user = os.geteuid()
    myself = os.getpid()
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdecimal() or int(entry.name) == myself:
                continue
            # A process may go at any moment of this: then it is none of ours to end.
            with suppress(OSError):
                if entry.stat().st_uid != user:
                    continue
            with suppress(OSError), _pinned(int(entry.name)) as descriptor:
                variables = _environment(entry.path)
                is_marked = bool(job) and mark in variables
                if not is_marked and not _lives_in(entry.path, sessions):
                    continue
                ranks = [word[12:] for word in variables if word.startswith(b"KADRIL_RANK=")]
                words = _read(entry.path + "/cmdline").split(b"\0")
                yield (
                    descriptor,
                    Leftover(
                        int(entry.name),
                        ranks[0].decode(errors="replace") if ranks else "",
                        b" ".join(words).decode(errors="replace").strip(),
                    ),
                )


@contextmanager
def _pinned(pid: int) -> Iterator[int]:
    # What is read after this, and what is signalled, is one and the same process: a pid may be
    # given to a stranger between the two, a pidfd may not.
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _environment(process: str) -> list[bytes]:
    # While a process loads its next program its memory is being filled: the environment is empty,
    # and the code, which comes last, is nowhere. One that is in a session of its own by then would
    # be missed.
    deadline = time.monotonic() + EXEC_TIME
    while not (text := _read(process + "/environ")):
        fields = _status(process)
        code, begin, end = int(fields[23]), fields[47], fields[48]
        is_empty = code != 0 and begin == end
        if is_empty or not os.path.exists(process + "/exe") or time.monotonic() > deadline:  # noqa: PTH110
            break  # the dead, and threads of the kernel, run no program
    return text.split(b"\0")


def _lives_in(process: str, sessions: Collection[int]) -> bool:
    if not sessions:
        return False
    state, _, _, session, *_ = _status(process)
    return state not in (b"Z", b"X") and int(session) in sessions


def _status(process: str) -> list[bytes]:
    # "pid (name) state parent group session ..."; the name may hold spaces and parentheses.
    return _read(process + "/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def kill_group(group: int, signum: int) -> None:
    """Send a signal to a process group that may have gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def remove_directory(directory: Path) -> None:
    """Remove a directory and what is in it, as far as it is there; links are not followed."""
    with suppress(FileNotFoundError):
        for path in list(directory.iterdir()):
            if path.is_dir() and not path.is_symlink():
                remove_directory(path)
            else:
                path.unlink(missing_ok=True)
        directory.rmdir()


def guard(job: str, directory: Path) -> None:
    """Wait for the end of the launcher, which is the end of stdin, and clean up after it."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    text = b""
    while piece := os.read(0, 4096):
        text += piece
    groups: list[int] = []
    # A launcher that died while it wrote leaves half a number, which must not name a stranger.
    for number in map(int, text.split(b"\n")[:-1]):
        if number > 0:
            groups.append(number)
        else:
            groups.remove(-number)
    for group in groups:
        kill_group(group, signal.SIGKILL)
    end_leftovers(job, groups, timeout=10.0)
    with suppress(OSError):
        remove_directory(directory)


if __name__ == "__main__":
    guard(sys.argv[1], Path(sys.argv[2]))
