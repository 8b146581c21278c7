"""Blocks: how a range, or a box, is split among the workers along the axes of a partition.

    size 10 over 4 workers      0 1 2 | 3 4 5 | 6 7 | 8 9        the first ones get one more

Pure arithmetic: every rank computes the same for all ranks, and nothing is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "balanced_intervals", "balanced_sizes", "intervals_of"]


class Interval(NamedTuple):
    """The integers from `start` to `stop` - 1."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of integers."""
        return max(0, self.stop - self.start)

    def __and__(self, other: Interval) -> Interval:
        """Return the intersection; of size 0 where there is none."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def shifted(self, distance: int) -> Interval:
        """Return the interval moved by a distance."""
        return Interval(self.start + distance, self.stop + distance)


def balanced_sizes(size: int, num_blocks: int) -> list[int]:
    """Return sizes of blocks that differ by one at most, the larger ones first."""
    each, rest = divmod(size, num_blocks)
    return [each + (block < rest) for block in range(num_blocks)]


def intervals_of(sizes: Sequence[int]) -> list[Interval]:
    """Return blocks of these sizes, one after the other, starting at 0."""
    stops = list(itertools.accumulate(sizes))
    return [Interval(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def balanced_intervals(size: int, num_blocks: int) -> list[Interval]:
    """Return the blocks of a range that is split evenly."""
    return intervals_of(balanced_sizes(size, num_blocks))
