"""Memory that a transport keeps from call to call, since fresh pages cost more than their bytes."""

from __future__ import annotations

import numpy as np

from kadril.transport.buffer import Memory

__all__ = ["Scratch"]

ALIGNMENT = 64


class Scratch:
    """Gives out pieces of one block of memory, until all of them are taken back together."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Memory:
        """Some memory, undefined; a larger block takes the place of one that is full."""
        begin = self._used
        end = begin + num_bytes
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        if self._used > self._memory.size:
            self._memory = np.empty(2 * self._used, dtype=np.uint8)
        return self._memory[begin:end]

    def take_back(self) -> None:
        """Let all memory be given out again."""
        self._used = 0

    def drop(self) -> None:
        """Give the memory back to the system."""
        self._memory = np.empty(0, dtype=np.uint8)
        self._used = 0
