"""What can be asked of the engine. The numbers are those of `native/engine/descriptor.h`."""

from __future__ import annotations

import enum

__all__ = ["Reduction", "Verb"]


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
    """How the values of all ranks become one."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
