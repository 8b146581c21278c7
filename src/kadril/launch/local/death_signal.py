"""Have the kernel end a process when its parent ends, however that comes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1

# Looked up here and not in the child, where after fork() as little as possible should happen.
_prctl = ctypes.CDLL(None).prctl


def end_with_parent(parent: int | None = None) -> Callable[[], None]:
    """Return what a child calls after a fork so that it gets SIGKILL when its parent ends.

    The kernel goes by the *thread* that has forked.

    Args:
        parent: process id of the parent; None is this process.
    """
    expected = os.getpid() if parent is None else parent

    def prepare() -> None:
        # The parent may be dead by now, and then no signal would come: look.
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare
