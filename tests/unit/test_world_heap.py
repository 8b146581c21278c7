"""Memory that a step frees is there for the next one, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

# Gradients of a perceptron with 10 million parameters. As glibc comes it gives the top of its heap
# back after each step.
PROGRAM = """
import resource
import torch
import kadril
from kadril.world.heap import trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1])

kadril.init()
for step in range(60):
    if step == 30:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(size << 18) for size in (16, 16, 6)]
    del tensors
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
trim_heap()
print(faults // 30, kept - resident())
"""

NUM_PAGES = (38 << 20) // os.sysconf("SC_PAGESIZE")


def run(**variables: str) -> tuple[int, int]:
    """Pages that the system clears in a step, and those that trimming gives back."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    faults, given_back = done.stdout.split()
    return int(faults), int(given_back)


def test_what_is_freed_is_kept_until_it_is_trimmed() -> None:
    faults, given_back = run()
    assert faults < NUM_PAGES / 20
    assert given_back > NUM_PAGES * 0.9


def test_a_user_who_has_set_the_allocator_up_is_left_alone() -> None:
    for variables in ({"MALLOC_MMAP_THRESHOLD_": "65536"}, {"KADRIL_KEEP_HEAP": "0"}):
        faults, _ = run(**variables)
        assert faults > NUM_PAGES / 2
