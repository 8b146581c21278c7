"""Signals to the launcher, as events of its loop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["SignalInbox"]

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class SignalInbox:
    """Collects the signals that are to be forwarded, while it is entered.

    A signal that was ignored when the launcher started stays ignored: that is how `nohup` and
    background jobs of a shell script ask to be left alone.

    Outside the main thread Python gives no signals to anybody, and the inbox stays empty.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = -1, -1
        self._old_wakeup = -1
        self._old_handlers: dict[int, Any] = {}

    def fileno(self) -> int:
        """Descriptor that is readable when there is a signal to take."""
        return self._read_end

    def __enter__(self) -> SignalInbox:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        if threading.current_thread() is not threading.main_thread():
            return self
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._install(signum, lambda _signum, _frame: None)
        # Children of a process that ignores SIGCHLD vanish without a status.
        self._install(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def _install(
        self,
        signum: signal.Signals,
        handler: Callable[[int, FrameType | None], None] | signal.Handlers,
    ) -> None:
        self._old_handlers[signum] = signal.signal(signum, handler)

    def take(self) -> list[int]:
        """Return the signals that came since the last call, in order."""
        try:
            return [signum for signum in os.read(self._read_end, 4096) if signum in FORWARDED]
        except BlockingIOError:
            return []

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._old_handlers.items():
            # None: installed by something other than Python, which cannot put it back.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if self._old_handlers:
            signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read_end)
        os.close(self._write_end)
