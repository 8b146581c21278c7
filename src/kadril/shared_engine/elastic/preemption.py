"""Signals that announce the end of a rank or of a job: commit now, at the same step on all ranks.

    SIGUSR1   commit, call what was registered, and go on
    SIGTERM   the same, and then this rank leaves

A rank tells the launcher, and the launcher tells all ranks; so they hear of it at one commit. A
launcher that is sent one of the signals tells them likewise, and all of them leave after SIGTERM.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from kadril.world.job_messages import MessageKind
from kadril.world.membership import Membership
from kadril.world.preloading import loaded_modules

__all__ = ["SIGNALS", "hears_signals"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def hears_signals(membership: Membership | None) -> Iterator[None]:
    """Tell the launcher of signals for a while; a program's own handlers are left alone."""
    if membership is None:
        yield
        return
    membership.say(MessageKind.LISTENS, modules=" ".join(loaded_modules()))

    def tell(signum: int, _frame: FrameType | None) -> None:
        membership.say(MessageKind.PREEMPTED, signal=signum)

    old: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            if signal.getsignal(signum) is signal.SIG_DFL:
                old[signum] = signal.signal(signum, tell)
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
