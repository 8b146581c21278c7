"""Division of an epoch among ranks whose number changes: each sample is used once.

    order      s0 s1 s2 s3 s4 s5 s6 s7 s8 s9       the same on all ranks
    3 ranks     0  1  2  0  1  2  0  1  2  0       rank 0 used 2 of its samples, ranks 1 and 2 one
    used        x  x  x  x  -  -  -  -  -  -
    2 ranks                 0  1  0  1  0  1       who gets what is left

What was used follows from a few numbers: for each division that came to an end, how many ranks
there were, and how many of its samples each of them had used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["num_shares", "take_used"]

T = TypeVar("T")


def take_used(indices: Sequence[T], divisions: Sequence[Sequence[int]]) -> list[T]:
    """Return the samples that are left of an epoch, in order.

    Args:
        indices: all of them, in order.
        divisions: of each that came to an end, how many samples each rank used.
    """
    left = list(indices)
    for counts in divisions:
        num_ranks = len(counts)
        left = [
            index
            for place, index in enumerate(left)
            if place // num_ranks >= counts[place % num_ranks]
        ]
    return left


def num_shares(num_samples: int, num_ranks: int) -> list[int]:
    """Return how many of so many samples each rank gets."""
    return [(num_samples - rank + num_ranks - 1) // num_ranks for rank in range(num_ranks)]
