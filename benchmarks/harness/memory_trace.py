"""The memory of a rank over time, in phases."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from harness.peak_memory import status_bytes

__all__ = ["MemoryTrace", "rank_bytes", "trace_phases"]

# Seconds between two looks. A look takes some 50 microseconds.
INTERVAL = 5e-4


def rank_bytes(num_ranks: int) -> float:
    """Return the resident memory of this process; what ranks share is divided by their number.

    Files that are mapped, such as libraries, do not count.
    """
    return status_bytes("RssAnon") + status_bytes("RssShmem") / num_ranks


@dataclasses.dataclass(frozen=True)
class MemoryTrace:
    """The memory of a rank over some phases.

    Attributes:
        phases: names of the phases, in order.
        samples: (place, bytes): phase i is from place i to i + 1, however long it took.
    """

    phases: Sequence[str]
    samples: Sequence[tuple[float, float]]

    @property
    def peak(self) -> float:
        """Return the most bytes at any time."""
        return max(num_bytes for _, num_bytes in self.samples)


class Watcher:
    """A thread that takes samples of the memory, until told to stop."""

    def __init__(self, num_ranks: int) -> None:
        self.seen: list[tuple[float, float]] = []
        self._num_ranks = num_ranks
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kadril.bench", daemon=True)

    def look(self) -> float:
        """Take a sample; return the time of it."""
        time = perf_counter()
        self.seen.append((time, rank_bytes(self._num_ranks)))
        return time

    def _watch(self) -> None:
        while not self._is_over.wait(INTERVAL):
            self.look()

    def __enter__(self) -> Watcher:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(INTERVAL / 5)  # the interpreter is to let the thread in
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)


def trace_phases(
    calls: Mapping[str, Callable[[], object]], *, num_ranks: int, before: float = 0
) -> MemoryTrace:
    """Make some calls, one after the other, and watch the memory.

    Args:
        calls: by name of the phase.
        num_ranks: of the host.
        before: bytes that do not count.
    """
    borders = []
    with Watcher(num_ranks) as watcher:
        for call in calls.values():
            borders.append(watcher.look())
            call()
        borders.append(watcher.look())
    samples = []
    for time, num_bytes in sorted(watcher.seen):
        phase = max(0, min(sum(border <= time for border in borders) - 1, len(calls) - 1))
        begin, end = borders[phase : phase + 2]
        place = min(max((time - begin) / max(end - begin, 1e-9), 0.0), 1.0)
        samples.append((phase + place, num_bytes - before))
    return MemoryTrace(tuple(calls), samples)
