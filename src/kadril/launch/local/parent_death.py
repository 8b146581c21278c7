"""A process that ends when the one that started it ends, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1

# Looked up here and not in a child, where after fork() as little as possible should happen.
_prctl = ctypes.CDLL(None).prctl


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends.

    It holds after an exec() too. The kernel looks at the *thread* of the parent that started this
    process. The parent may be dead by now, and then no signal would come: it is sent here.

    Args:
        parent: the process that should be the parent.
        signum: what is sent; SIGKILL works on stopped processes too.
    """
    _prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)
