"""Take samples, in the same way for every engine.

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
    num_calls: int,
    num_samples: int,
    num_warm_ups: int | None = None,
    touch: Callable[[], object] | None = None,
) -> list[float]:
    """Return the seconds per call of each sample, as this rank sees it.

    Args:
        call: call whose time is taken.
        barrier: lets all ranks start together.
        num_calls: calls per sample.
        num_samples: number of samples.
        num_warm_ups: calls before the first sample; as many as are in one, but at least two, where
            None.
        touch: done before each sample, outside of the timed part.
    """
    seconds = []
    calls = range(num_calls)
    if num_warm_ups is None:
        num_warm_ups = max(num_calls, NUM_WARM_UPS)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(num_warm_ups):
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
