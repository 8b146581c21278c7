"""Memory that a step frees is there for the next one, and what parameters had is given back."""

from __future__ import annotations

import os
import subprocess
import sys

# Pages that the system clears in twenty steps which each need 48 MiB anew.
PROGRAM = """
import resource, sys
import torch
from kadril.sharded.memory import keep_heap, trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1])

if sys.argv[1] == "keep":
    keep_heap()
for step in range(21):
    if step == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(4 << 20) for _ in range(3)]
    del tensors
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
trim_heap()
print(faults, kept - resident())
"""

NUM_PAGES = 20 * (48 << 20) // os.sysconf("SC_PAGESIZE")


def run(word: str, **variables: str) -> tuple[int, int]:
    """Pages that were cleared, and those that trimming gave back."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    faults, given_back = done.stdout.split()
    return int(faults), int(given_back)


def test_what_is_freed_is_kept_until_it_is_trimmed() -> None:
    faults, given_back = run("keep")
    assert faults < NUM_PAGES / 20  # what one step needs
    assert given_back > NUM_PAGES / 20 * 0.9


def test_a_user_who_has_set_the_allocator_up_is_left_alone() -> None:
    faults, _ = run("keep", MALLOC_MMAP_THRESHOLD_="65536")
    assert faults > NUM_PAGES * 0.9
