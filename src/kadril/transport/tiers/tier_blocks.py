"""Blocks: an array of one part per rank, seen as one block per host.

array, ranks 0 to 3 round robin on hosts A and B     | 0 | 1 | 2 | 3 |
block of A                                           | 0 | 2 |
block of B                                           | 1 | 3 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from kadril.transport.buffer import Memory
from kadril.transport.tiers.tier_plan import even_cuts

__all__ = ["Blocks", "Slice", "chunk_cuts", "gather_slices", "scatter_slices", "view_together"]


class Slice(NamedTuple):
    """Part of a chunk of a block that one rank has; `begin == end` for nothing.

    Attributes:
        rank: whose it is.
        begin, end: bytes of the chunk.
        place: where they begin in the array.
        skip: where they begin in the rank's part.
    """

    rank: int
    begin: int
    end: int
    place: int
    skip: int

    @property
    def num_bytes(self) -> int:
        """Bytes of it."""
        return self.end - self.begin


class Blocks:
    """The parts of an array by host.

    Args:
        hosts: ranks of each host.
        lengths: bytes of each rank's part.
    """

    def __init__(self, hosts: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        places = [0, *accumulate(lengths)]
        self._parts = [
            [
                Slice(rank, end - lengths[rank], end, places[rank], 0)
                for rank, end in zip(host, accumulate(lengths[rank] for rank in host), strict=True)
            ]
            for host in hosts
        ]

    def slices(self, host: int, begin: int, end: int) -> list[Slice]:
        """Return what each rank of a host has of some bytes of its block."""
        slices = []
        for part in self._parts[host]:
            low, high = max(part.begin, begin), min(part.end, end)
            if low >= high:
                slices.append(Slice(part.rank, 0, 0, part.place, 0))
                continue
            skip = low - part.begin
            slices.append(Slice(part.rank, low - begin, high - begin, part.place + skip, skip))
        return slices

    def chunks(self, chunk_bytes: int, itemsize: int) -> Iterator[tuple[int, int, int]]:
        """Yield chunks of all blocks in turn, so that all hosts are busy: host, begin, end."""
        cuts = [list(chunk_cuts(parts[-1].end, chunk_bytes, itemsize)) for parts in self._parts]
        for number in range(max(map(len, cuts))):
            for host, ranges in enumerate(cuts):
                if number < len(ranges):
                    yield host, *ranges[number]


def chunk_cuts(num_bytes: int, chunk_bytes: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most about `chunk_bytes` that differ by one element at most."""
    if num_bytes:
        cuts = even_cuts(num_bytes // itemsize, -(-num_bytes // chunk_bytes))
        for begin, end in pairwise(cuts):
            yield begin * itemsize, end * itemsize


def view_together(array: Memory, slices: Sequence[Slice]) -> Memory | None:
    """The memory of slices, where they lie in the array one after the other; else None."""
    held = [each for each in slices if each.num_bytes]
    if any(one.place + one.num_bytes != other.place for one, other in pairwise(held)):
        return None
    return array[held[0].place : held[-1].place + held[-1].num_bytes]


def gather_slices(array: Memory, slices: Sequence[Slice], memory: Memory) -> None:
    """Copy slices of an array to memory that has them one after the other."""
    for each in slices:
        memory[each.begin : each.end] = array[each.place : each.place + each.num_bytes]


def scatter_slices(memory: Memory, slices: Sequence[Slice], array: Memory) -> None:
    """Copy slices back to their places in an array."""
    for each in slices:
        array[each.place : each.place + each.num_bytes] = memory[each.begin : each.end]
