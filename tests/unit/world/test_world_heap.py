"""Memory that a step frees is there for the next one, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

# Gradients of a perceptron with 10 million parameters, as arrays of numpy: torch takes seconds to
# load, and has its memory from the same allocator, but in small pages only.
# It prints the pages that the system clears in a step, and those that trimming gives back.
STEPS = """
import resource
import numpy as np
import kadril
from kadril.world.heap import trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1])

kadril.init()
for step in range(40):
    if step == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(size << 18, np.float32) for size in (16, 16, 6)]
    del arrays
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
trim_heap()
print(faults // 20, kept - resident())
"""

NUM_PAGES = (38 << 20) // os.sysconf("SC_PAGESIZE")

# As glibc comes, what becomes of freed memory depends on what lies around it. But where the first
# large tensor is put does not: not in the heap, but in a mapping of its own. It prints the bytes.
FIRST_TENSOR = """
import ctypes
import numpy as np
import kadril

class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Facts
kadril.init()
before = ask().hblkhd
array = np.ones(31 << 18, np.float32)
print(ask().hblkhd - before, 0)
"""


def run(program: str, **variables: str) -> tuple[int, int]:
    """The two numbers that a program prints."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    variables = {"NUMPY_MADVISE_HUGEPAGE": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.split()
    return int(first), int(second)


def test_what_is_freed_is_kept_until_it_is_trimmed() -> None:
    faults, given_back = run(STEPS)
    assert faults < NUM_PAGES / 20
    assert given_back > NUM_PAGES * 0.9


def test_a_large_tensor_lies_in_the_heap() -> None:
    assert run(FIRST_TENSOR)[0] == 0


def test_a_user_who_has_set_the_allocator_up_is_left_alone() -> None:
    faults, _ = run(STEPS, MALLOC_MMAP_THRESHOLD_="65536")
    assert faults > NUM_PAGES / 2
    assert run(FIRST_TENSOR, KADRIL_KEEP_HEAP="0")[0] >= 31 << 20
    tunables = "glibc.malloc.mmap_threshold=131072"
    assert run(FIRST_TENSOR, GLIBC_TUNABLES=tunables)[0] >= 31 << 20
