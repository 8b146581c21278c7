"""Orphans: ranks end themselves when the process that started them is gone."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

__all__ = ["die_with_connection", "die_with_parent"]

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; it works on stopped processes too.

    The kernel looks at the *thread* of the parent that started this process: a pool that was first
    used in a thread loses its ranks with that thread, and starts new ones.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def die_with_connection(descriptor: int) -> None:
    """End this process when a socket's other end is gone: for ranks whose parent is an mpirun."""
    poller = select.poll()
    poller.register(descriptor, select.POLLRDHUP)

    def watch() -> None:
        poller.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="kadril-testing-orphan", daemon=True).start()
