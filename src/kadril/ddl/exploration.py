"""Mode p: try every way to reduce on the user's own calls, and keep the quickest.

A way that is best for a megabyte need not be for a kilobyte, so each power of two of bytes is
explored by itself:

    call       1 2 3     4 5 6    7 8 9       then
    way        tiers     flat     scatter     whichever was quickest

A way is as quick as its best call on the slowest rank: waiting for a rank that is late does not
count. All ranks hear the same times, so all of them choose the same way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kadril.ddl.ways import Way
from kadril.transport.base import Transport

__all__ = ["Exploration"]

CALLS_PER_WAY = 3


class SizeClass:
    """Times of calls of one size: the best of each way so far, or the way that was chosen."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.times: dict[str, float] = {}
        self.chosen = ""


class Exploration:
    """Chooses a way for each call; all ranks make the same calls in the same order."""

    def __init__(self, ways: Mapping[str, Way], transport: Transport) -> None:
        # On one host two of the words stand for the same way.
        self._ways: dict[str, Way] = {}
        for way in ways.values():
            self._ways.setdefault(way.name, way)
        self._transport = transport
        self._classes: dict[int, SizeClass] = {}

    def way_for(self, num_bytes: int) -> Way:
        """The way that the next call of this size takes."""
        known = self._class_of(num_bytes)
        names = list(self._ways)
        return self._ways[known.chosen or names[known.num_calls // CALLS_PER_WAY]]

    def note(self, num_bytes: int, way: Way, seconds: float) -> None:
        """Take the time of a call; collective where it is the last one to be explored."""
        known = self._class_of(num_bytes)
        if known.chosen:
            return
        known.num_calls += 1
        known.times[way.name] = min(seconds, known.times.get(way.name, seconds))
        if known.num_calls == CALLS_PER_WAY * len(self._ways):
            known.chosen = self._agree(known)

    def forget(self) -> None:
        """Begin again: a learner has become slow, or quick."""
        self._classes = {}

    def choices(self) -> dict[int, str]:
        """The chosen way for each explored size class, by the least number of bytes in it."""
        return {1 << size: known.chosen for size, known in sorted(self._classes.items())}

    def _class_of(self, num_bytes: int) -> SizeClass:
        return self._classes.setdefault(max(num_bytes, 1).bit_length() - 1, SizeClass())

    def _agree(self, known: SizeClass) -> str:
        """The way whose slowest rank is quickest."""
        names = list(self._ways)
        mine = struct.pack(f"<{len(names)}d", *(known.times[name] for name in names))
        told = self._transport.allgather_bytes(mine, name="ddl.explore")
        times = zip(*(struct.unpack(f"<{len(names)}d", each) for each in told), strict=True)
        slowest = dict(zip(names, map(max, times), strict=True))
        return min(names, key=slowest.__getitem__)
