"""The heap of this process: what a training step frees, the next one needs again."""

from __future__ import annotations

import ctypes
import os
from typing import Any

__all__ = ["keep_heap", "trim_heap", "trim_heap_after"]

# From malloc.h of glibc, and the largest values that it takes.
M_TRIM_THRESHOLD, MOST_KEPT = -1, 2**31 - 1
M_MMAP_THRESHOLD, LARGEST_KEPT = -3, 32 << 20

# With these the user has set the allocator up.
VARIABLES = ("MALLOC_", "GLIBC_TUNABLES")


def keep_heap() -> None:
    """Have the allocator keep what is freed, if it is that of glibc and nobody has set it up.

    By default it gives large tensors back to the system whenever they are freed, and the system
    clears every page of the next ones: a tenth to a third of a step.
    """
    set_option = find_function("mallopt")
    if set_option is None or any(name.startswith(VARIABLES) for name in os.environ):
        return
    set_option(M_TRIM_THRESHOLD, MOST_KEPT)
    set_option(M_MMAP_THRESHOLD, LARGEST_KEPT)


def trim_heap() -> None:
    """Give free memory back to the system, after something large that does not come again."""
    trim = find_function("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


def trim_heap_after(num_steps: int) -> None:
    """Trim the heap after a training step; ever more rarely, so that in the end it costs nothing.

    The first step makes state amid gradients, which leaves holes in the heap, and every step may
    leave some that are not used again.
    """
    if num_steps & (num_steps - 1) == 0:
        trim_heap()


def find_function(name: str) -> Any:
    """A function of the C library of this process; None where it has none."""
    return getattr(ctypes.CDLL(None), name, None)
