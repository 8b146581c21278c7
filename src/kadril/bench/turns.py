"""The order in which those who are measured take turns.

    round 1   kadril   gloo     openmpi
    round 2   gloo     openmpi  kadril        another one begins in each round
    round 3   openmpi  kadril   gloo

All are measured in each round, one after the other, so that a burst of noise meets all of them at
one task, and not one of them at all tasks. Rounds are far apart in time: noise spoils one round and
not the median, and a ratio taken round by round does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["order_of_round"]

T = TypeVar("T")


def order_of_round(takers: Sequence[T], number: int) -> Sequence[T]:
    """Return all takers in the order of a round.

    Args:
        takers: in the order of the first round.
        number: of the round, from 0.
    """
    first = number % len(takers) if takers else 0
    return (*takers[first:], *takers[:first])
