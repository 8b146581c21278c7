"""The memory that a task works on, what goes in, and what must come out.

Every engine gets memory from the same allocator, except for zero-copy, where the memory is the
point. Inputs for the check are small whole numbers, so that every sum is exact and `==` is the
test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kadril.bench.collectives import ITEM_BYTES

__all__ = ["IN_PLACE", "Workload", "WrongResult"]

Floats: TypeAlias = npt.NDArray[np.float32]

# The result takes the place of the input.
IN_PLACE = frozenset({"allreduce", "reduce", "broadcast"})

# A prime, so that no part of an array looks like another.
PATTERN_LENGTH = 251

# What arrays hold while the clock runs. Calls in a batch work on the results of the one before:
# anything else would grow until it overflows.
NEUTRAL = 0.0


class WrongResult(Exception):  # noqa: N818 - reads as what happened
    """An engine gave another result than it must."""


class Workload:
    """The arrays of one rank for one task.

    Attributes:
        collective: name of the collective, or "copy".
        count: number of elements of the size as `collectives.py` defines it.
        rank: of this process.
        num_ranks: number of ranks of the job.
        source: what this rank gives, as the engine's kind of array.
        target: where the result goes; the same object as `source` where the collective is in place.
    """

    def __init__(
        self,
        collective: str,
        num_bytes: int,
        rank: int,
        num_ranks: int,
        allocate: Callable[[int], Any],
        look: Callable[[Any], Floats],
    ) -> None:
        self.collective = collective
        self.count = num_bytes // ITEM_BYTES
        self.rank = rank
        self.num_ranks = num_ranks
        part = self.count // num_ranks
        self.source = allocate(part if collective == "allgatherv" else self.count)
        self._source = look(self.source)
        if collective in IN_PLACE:
            self.target, self._target = self.source, self._source
        else:
            self.target = allocate(part if collective == "reduce_scatterv" else self.count)
            self._target = look(self.target)
        self.touch()
        self._target.fill(NEUTRAL)  # so that its pages are there before the clock runs

    @property
    def part(self) -> int:
        """Number of elements per rank, of a collective that has one part per rank."""
        return self.count // self.num_ranks

    def touch(self) -> None:
        """Write the input, as a backward pass would just have done."""
        self._source.fill(NEUTRAL)

    def check(self, call: Callable[[], object]) -> None:
        """Call once on inputs that tell every rank and element apart, and check what comes out.

        Raises:
            WrongResult: it is wrong.
        """
        if self.target is not self.source:
            self._target.fill(-1)
        self._source[:] = pattern(self._source.size) + np.float32(self.rank)
        call()
        expected = self._expected()
        if expected is not None and not np.array_equal(self._target, expected):
            wrong = int(np.flatnonzero(self._target != expected)[0])
            raise WrongResult(
                f"{self.collective} of {self.count} elements: element {wrong} on rank {self.rank}"
                f" is {self._target[wrong]}, not {expected[wrong]}"
            )
        self.touch()

    def _expected(self) -> Floats | None:
        """Return what the result on this rank must be; None where it has none."""
        values = pattern(self._source.size)
        total = values * np.float32(self.num_ranks) + np.float32(sum(range(self.num_ranks)))
        part = slice(self.rank * self.part, (self.rank + 1) * self.part)
        ranks = np.arange(self.num_ranks, dtype=np.float32)
        if self.collective == "allreduce":
            return total
        if self.collective == "reduce":
            return total if self.rank == 0 else None
        if self.collective == "broadcast":
            return values
        if self.collective == "allgatherv":
            return np.add.outer(ranks, values).reshape(-1)
        if self.collective == "reduce_scatterv":
            return total[part]
        if self.collective == "alltoallv":
            return np.add.outer(ranks, values[part]).reshape(-1)
        if self.collective == "exchange":
            return values + np.float32((self.rank - 1) % self.num_ranks)
        return values + np.float32(self.rank)  # a plain copy


def pattern(count: int) -> Floats:
    """Small whole numbers that repeat."""
    return np.resize(np.arange(PATTERN_LENGTH, dtype=np.float32), count)
