"""Flight recorder of a rank that `kadril run` has started: its last calls, and stacks when asked.

    <directory of the job>/rank-<r>.record    the last calls (native/recorder.h)
    <directory of the job>/rank-<r>.stacks    Python stacks, written at each STACK_SIGNAL

`kadril ps`, `kadril dump` and the launcher read them; see `kadril.observe.flight_record`.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import struct
import threading
from pathlib import Path

__all__ = ["start_recording"]

RECORD_VARIABLE = "KADRIL_RECORD_FILE"

# Of rank and size in a record; see native/recorder.cc.
RANK_OFFSET = 20

logger = logging.getLogger("kadril")

_kept_open: list[object] = []  # faulthandler keeps the descriptor only


def start_recording(rank: int, size: int) -> None:
    """Begin to record the calls of this process, where the launcher wants it.

    In later generations of an elastic job the record goes on, under the rank of this process there.
    """
    path = os.environ.get(RECORD_VARIABLE)
    if not path:
        return
    from kadril import _native

    signum = prepare_stacks(Path(path).with_suffix(".stacks"))
    problem = _native.open_recorder(path, rank, size, signum)
    if problem:
        logger.warning("no flight record, so `kadril dump` cannot show this rank: %s", problem)
        return
    with Path(path).open("r+b") as file:
        file.seek(RANK_OFFSET)
        file.write(struct.pack("<ii", rank, size))


def prepare_stacks(path: Path) -> int:
    """Arrange for stacks in a file at a signal; return the signal, or 0 where it is in use."""
    # One that hardly any program uses. Taken only where nobody has: it may be the program's.
    signum = signal.SIGRTMIN + 13
    if _kept_open:
        return signum
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signum) != signal.SIG_DFL
    ):
        return 0
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        logger.warning("no stacks for `kadril dump`: %s", error)
        return 0
    _kept_open.append(file)
    faulthandler.register(signum, file=file, all_threads=True)
    return signum
