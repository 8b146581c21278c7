"""The roll call: notes that ranks leave for each other in the store, for when something goes wrong.

gloo tells that a connection broke or that time ran out, not whose fault it is. So each rank notes
what it knows under its own rank, and a rank in trouble reads the notes of the others:

    waiting/<rank>    number of the call it waits in   -> who does not wait is late
    ending/<rank>     why it left the group            -> who alone says nothing is dead
    num_endings       so that a waiting rank asks once, not once per rank

No note is written or read as long as calls go through.
"""

from __future__ import annotations

import time

from torch.distributed import Store

from kadril.transport.ending import Ending

__all__ = ["RollCall"]

ANSWER_TIME = 0.5  # seconds that ranks which lost the same peer have to say so


class RollCall:
    """The notes of one group, seen from one of its ranks.

    Every method talks to the store, and raises `RuntimeError` where that is gone.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = store
        self.rank = rank
        self.size = size

    def note_waiting(self, num_call: int) -> None:
        """Say that this rank waits in its n-th call."""
        self.store.set(f"waiting/{self.rank}", str(num_call))

    def late(self, num_call: int) -> list[int]:
        """Ranks that do not wait in that call, as far as they have said."""
        return [
            rank
            for rank in range(self.size)
            if rank != self.rank and self._read(f"waiting/{rank}") != str(num_call).encode()
        ]

    def note_ending(self, ending: Ending) -> None:
        """Say why this rank leaves."""
        self.store.set(f"ending/{self.rank}", ending.encode().decode(errors="replace"))
        self.store.add("num_endings", 1)

    def endings(self) -> dict[int, Ending]:
        """Why ranks left, by rank."""
        if self.store.add("num_endings", 0) == 0:
            return {}
        notes = {rank: self._read(f"ending/{rank}") for rank in range(self.size)}
        return {rank: Ending.decode(note) for rank, note in notes.items() if note is not None}

    def silent(self) -> list[int]:
        """Ranks that left no note, after giving all a moment to do so. One of them is the cause.

        A rank that is busy elsewhere leaves no note either, so where there are several nobody knows
        which.
        """
        deadline = time.monotonic() + ANSWER_TIME
        while True:
            missing = sorted(set(range(self.size)) - {self.rank} - self.endings().keys())
            if len(missing) <= 1 or time.monotonic() > deadline:
                return missing
            time.sleep(0.01)

    def _read(self, key: str) -> bytes | None:
        return self.store.get(key) if self.store.check([key]) else None
