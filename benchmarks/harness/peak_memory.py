"""Rise of a process's memory above where it was, during a call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["peak_growth", "status_bytes"]

# Resets the high-water mark of resident memory; see proc(5).
RESET_PEAK = "5"


def peak_growth(call: Callable[[], object]) -> int:
    """Return the most bytes of resident memory during a call, beyond those before it.

    Resident memory is what the kernel sees: freed memory that the allocator keeps counts. So run
    with `MALLOC_MMAP_THRESHOLD_=65536` in the environment, with which glibc gives every large block
    back at once, and make the call once before, so that what is made only once is there.
    """
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status that is in kB, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)
