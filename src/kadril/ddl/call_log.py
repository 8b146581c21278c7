"""The log of a rank's all-reduces, and its summary over all ranks.

Clocks of hosts differ, so nobody compares times of day. All ranks leave an all-reduce at nearly the
same moment, and each knows how long it was inside:

    rank 0   |-----------------------|      in first: 9 ms
    rank 1         |-----------------|      3 ms later
    rank 2                  |--------|      in last: 4 ms, the reduction itself; 5 ms late

So the shortest stay is the time of the reduction, and a rank is late by as much as its own stay is
shorter than the longest.
"""

from __future__ import annotations

import os
import statistics
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kadril.transport.agreement import allgather_json
from kadril.transport.base import Transport

__all__ = ["CallLog", "CallRecord", "Statistics"]


class CallRecord(NamedTuple):
    """One all-reduce, as this rank saw it.

    Attributes:
        way: how it was reduced.
        num_bytes: of the list.
        seconds: from call to return, without the packing of the list.
        tiers: seconds in each tier of the network, by its name.
    """

    way: str
    num_bytes: int
    seconds: float
    tiers: dict[str, float]


class Statistics(NamedTuple):
    """A summary of some all-reduces, the same on all ranks.

    Attributes:
        num_calls: how many.
        num_bytes: of the largest.
        seconds: median time of the reduction itself, after the last rank has come.
        longest: the longest of them.
        waiting: mean time that the first rank waited for the last.
        lateness: of each rank, in the mean.
        jitter: of each rank: standard deviation of its lateness.
        tiers: mean time in each tier, of the rank that is late the most and so waits the least.
        ways: number of calls for each way.
        cores: that each rank may run on.
    """

    num_calls: int
    num_bytes: int
    seconds: float
    longest: float
    waiting: float
    lateness: tuple[float, ...]
    jitter: tuple[float, ...]
    tiers: dict[str, float]
    ways: dict[str, int]
    cores: tuple[tuple[int, ...], ...]

    @property
    def latest(self) -> int:
        """The rank with the largest lateness."""
        return int(np.argmax(self.lateness))

    @property
    def most_jitter(self) -> int:
        """The rank whose lateness varies the most."""
        return int(np.argmax(self.jitter))


class CallLog:
    """The latest all-reduces of this rank."""

    def __init__(self) -> None:
        self._records: list[CallRecord] = []

    def add(self, record: CallRecord) -> None:
        """Remember a call."""
        self._records.append(record)

    def take(self, transport: Transport) -> Statistics:
        """Gather what all ranks remember, and forget it; collective."""
        records, self._records = self._records, []
        names = sorted({name for record in records for name in record.tiers})
        mine = {
            "seconds": [round(record.seconds, 9) for record in records],
            "tiers": {
                name: statistics.fmean(record.tiers.get(name, 0.0) for record in records)
                for name in names
            },
            "cores": sorted(os.sched_getaffinity(0)),
        }
        told = allgather_json(transport, mine, "ddl.statistics")
        stays = np.array([each["seconds"] for each in told], dtype=np.float64)
        lateness = stays.max(axis=0) - stays
        latest = int(np.argmax(lateness.mean(axis=1)))
        ways: dict[str, int] = {}
        for record in records:
            ways[record.way] = ways.get(record.way, 0) + 1
        return Statistics(
            num_calls=len(records),
            num_bytes=max(record.num_bytes for record in records),
            seconds=float(np.median(stays.min(axis=0))),
            longest=float(stays.min(axis=0).max()),
            waiting=float((stays.max(axis=0) - stays.min(axis=0)).mean()),
            lateness=means(lateness),
            jitter=tuple(float(each) for each in lateness.std(axis=1)),
            tiers=dict(told[latest]["tiers"]),
            ways=ways,
            cores=tuple(tuple(each["cores"]) for each in told),
        )


def means(rows: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """The mean of each row."""
    return tuple(float(each) for each in rows.mean(axis=1))
