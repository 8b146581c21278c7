"""The collectives that are measured, and what the size of one means.

Bandwidths are defined as in nccl-tests: with S bytes in t seconds on n ranks, the algorithm
bandwidth is S / t, and the bus bandwidth is what each rank's link has to carry for it, S / t times
a factor that depends on n alone. So the bus bandwidths of different collectives and numbers of
ranks can be compared with each other, and with what the hardware has.

    collective        S is                               factor
    allreduce         the array of one rank              2 (n - 1) / n
    reduce            the array of one rank              1
    broadcast         the array of the root              1
    allgatherv        the result, of all ranks           (n - 1) / n
    reduce_scatterv   the array of one rank              (n - 1) / n
    alltoallv         what one rank sends, itself too    (n - 1) / n
    exchange          what one rank sends to the next    1
    barrier           0                                  no bandwidth
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["COLLECTIVES", "ITEM_BYTES", "Collective", "whole_bytes"]

ITEM_BYTES = 4  # everything is measured in float32


class Collective(NamedTuple):
    """A collective.

    Attributes:
        name: that of the method of a transport.
        bus_factor: from algorithm to bus bandwidth, by number of ranks.
        is_parted: whether the array has one part per rank, all of the same size.
        is_sized: whether it moves memory at all.
    """

    name: str
    bus_factor: Callable[[int], float]
    is_parted: bool = False
    is_sized: bool = True


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("allreduce", lambda n: 2 * (n - 1) / n),
        Collective("reduce", lambda n: 1.0),
        Collective("broadcast", lambda n: 1.0),
        Collective("allgatherv", lambda n: (n - 1) / n, is_parted=True),
        Collective("reduce_scatterv", lambda n: (n - 1) / n, is_parted=True),
        Collective("alltoallv", lambda n: (n - 1) / n, is_parted=True),
        Collective("exchange", lambda n: 1.0),
        Collective("barrier", lambda n: 0.0, is_sized=False),
    )
}


def whole_bytes(collective: Collective, num_bytes: int, num_ranks: int) -> int:
    """Return the size that is measured for `num_bytes`: whole elements, whole parts."""
    if not collective.is_sized:
        return 0
    grain = ITEM_BYTES * (num_ranks if collective.is_parted else 1)
    return -(-num_bytes // grain) * grain
