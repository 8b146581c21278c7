"""Signals that announce the end of a rank or of a job: commit now, at the same step on all ranks.

    SIGUSR1   commit, call what was registered, and go on
    SIGTERM   the same, and then this rank leaves

A rank tells the launcher, and the launcher tells all ranks; so they hear of it at one commit. A
launcher that is sent one of the signals tells them likewise, and all of them leave after SIGTERM.

Processes that a rank forks are no ranks: there these signals do what they did before. They are held
back during the fork, because Python drops those that come before the child has got that far.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from kadril.world.job_messages import MessageKind
from kadril.world.membership import Membership
from kadril.world.preloading import loaded_modules

__all__ = ["SIGNALS", "hears_signals"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

# Handlers of this rank, in place of the default action.
_handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}


class _Mask(threading.local):
    before_fork: frozenset[int] = frozenset()


_mask = _Mask()


@contextlib.contextmanager
def hears_signals(membership: Membership | None) -> Iterator[None]:
    """Tell the launcher of signals for a while; a program's own handlers are left alone."""
    if membership is None:
        yield
        return
    membership.say(MessageKind.LISTENS, modules=" ".join(loaded_modules()))

    def tell(signum: int, _frame: FrameType | None) -> None:
        membership.say(MessageKind.PREEMPTED, signal=signum)

    own: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        own = [each for each in SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    for signum in own:
        _handlers[signum] = tell
        signal.signal(signum, tell)
    try:
        yield
    finally:
        _stop_hearing(own)


def _stop_hearing(signals: Iterable[signal.Signals]) -> None:
    for signum in signals:
        handler = _handlers.pop(signum, None)
        # The program may have set one of its own since.
        if handler is not None and signal.getsignal(signum) is handler:
            signal.signal(signum, signal.SIG_DFL)


def _hold_back() -> None:
    _mask.before_fork = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    signal.pthread_sigmask(signal.SIG_BLOCK, tuple(_handlers))


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before_fork)


def _end_in_child() -> None:
    _stop_hearing(SIGNALS)
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_end_in_child)
