"""How a sample is taken; the same way for every engine.

    rank 0   | write array | barrier |clock  call call ... call  clock|
    rank 1   | write array    | barr.|clock  call call ... call    clock|
                                      <----------- sample ------------>    the longest of all ranks

The barrier is kadril's own for every engine: ranks of a peer leave it as closely together as those
of kadril do, so that no peer pays for a slow barrier of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

__all__ = ["take_samples"]

NUM_WARM_UPS = 2


def take_samples(
    call: Callable[[], object],
    *,
    barrier: Callable[[], object],
    touch: Callable[[], object] | None,
    num_calls: int,
    num_samples: int,
) -> list[float]:
    """Seconds per call of each sample, as this rank sees it.

    Args:
        call: the collective.
        barrier: lets all ranks start together.
        touch: done before each sample, outside of the timed part.
        num_calls: calls per sample.
        num_samples: number of samples.
    """
    seconds = []
    calls = range(num_calls)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(max(num_calls, NUM_WARM_UPS)):
            call()
        for _ in range(num_samples):
            if touch is not None:
                touch()
            barrier()
            start = perf_counter()
            for _ in calls:
                call()
            seconds.append((perf_counter() - start) / num_calls)
    finally:
        if was_enabled:
            gc.enable()
    return seconds
