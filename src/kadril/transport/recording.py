"""Flight recorder of a rank: its last calls, and stacks when asked, for other processes to read.

Under `kadril run`, in files that outlive the rank:

    <directory of the job>/rank-<r>.record    the last calls (native/recorder.h)
    <directory of the job>/rank-<r>.stacks    Python stacks, written at each signal

Under any other launcher, in memory of the rank, which leaves nothing behind and has no name that
somebody could guess:

    /proc/<pid>/fd/<n> -> /memfd:kadril-record    the last calls, and after them the stacks

`kadril ps`, `kadril dump` and the launchers read them; see `kadril.observe.flight_record`. A child
made by fork has the same descriptor: the record itself says which process it belongs to.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import threading
from pathlib import Path

__all__ = ["MEMORY_NAME", "record_in_memory", "start_recording"]

RECORD_VARIABLE = "KADRIL_RECORD_FILE"
MEMORY_NAME = "kadril-record"

# One that hardly any program uses.
STACK_SIGNAL = signal.SIGRTMIN + 13

logger = logging.getLogger("kadril")

_stack_files: list[int] = []  # descriptors that faulthandler was given; the last one counts


def start_recording(rank: int, size: int) -> None:
    """Begin to record the calls of this process in a file, where the launcher wants it.

    In later generations of an elastic job the record goes on, under the rank of this process there.
    """
    from kadril import _native

    path = os.environ.get(RECORD_VARIABLE)
    if not path or _native.go_on_recording(rank, size):
        return
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            signum = stacks_in_file(Path(path).with_suffix(".stacks"))
            problem = _native.open_recorder(descriptor, rank, size, signum)
        finally:
            os.close(descriptor)
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        logger.warning(
            "no flight record, so `kadril dump` cannot show this rank: %s: %s", path, problem
        )


def record_in_memory(rank: int, size: int) -> None:
    """Begin to record the calls of this process in its memory, where no launcher gives a file.

    Called when the ranks have met, so that an `init()` that fails leaves nothing. The descriptor
    stays open as long as the process lives, since calls may be under way at any time.
    """
    from kadril import _native

    if _native.go_on_recording(rank, size) or size < 2 or os.environ.get(RECORD_VARIABLE):
        return
    try:
        descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        # Stacks are added at the end, behind the record.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        problem = _native.open_recorder(descriptor, rank, size, write_stacks_to(descriptor))
    except OSError as error:
        problem = str(error)
    if problem:
        # Nobody has asked for it, and a sandbox may be without: not worth a warning of each rank.
        logger.info("no flight record, so `kadril dump` cannot show this rank: %s", problem)


def stacks_in_file(path: Path) -> int:
    """Arrange for stacks in a file at a signal; return the signal, or 0 where it is in use."""
    if _stack_files:
        return STACK_SIGNAL
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("no stacks for `kadril dump`: %s", error)
        return 0
    signum = write_stacks_to(descriptor)
    if not signum:
        os.close(descriptor)
    return signum


def write_stacks_to(descriptor: int) -> int:
    """Have stacks written there at a signal; return the signal, or 0 where it is in use."""
    # Taken only where nobody has: it may be the program's. In a child made by fork it may be ours,
    # with the descriptor of the parent.
    if (
        not _stack_files
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(STACK_SIGNAL) != signal.SIG_DFL
    ):
        return 0
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
    _stack_files.append(descriptor)
    return STACK_SIGNAL
