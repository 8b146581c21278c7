"""Verbs and reductions of the engine, numbered as in `native/engine/descriptor.h`."""

from __future__ import annotations

import enum
import functools

from kadril._native import Operation

__all__ = ["Reduction", "Verb", "allreduce_operation"]


class Verb(enum.IntEnum):
    """A kind of request."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6


class Reduction(enum.IntEnum):
    """Reduction of the values of all ranks to one."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@functools.lru_cache(maxsize=256)
def allreduce_operation(
    reduction: int, prescale: float, postscale: float, *, is_group: bool = False
) -> Operation:
    """Return the all-reduce with this reduction and these factors.

    Kept from call to call: a training step asks for the same one many times.
    """
    return Operation(
        Verb.ALLREDUCE,
        reduction=int(reduction),
        prescale=prescale,
        postscale=postscale,
        is_group=is_group,
    )
