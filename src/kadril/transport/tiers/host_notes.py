"""Notes that ranks of one host leave for each other in shared memory when they leave a group.

A rank that fails wakes the others of its host, who know nothing but that it gave up. Here they read
why: whom it lost on another host, or whose patience ran out. See `ending.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kadril import _native
from kadril.transport.base import Transport
from kadril.transport.ending import MAX_BYTES, Ending

__all__ = ["HostNotes"]

LENGTH_BYTES = 2
NOTE_BYTES = LENGTH_BYTES + MAX_BYTES


class HostNotes:
    """The notes of one group of ranks on one host; collective to make.

    Where ranks share no memory, or have no room left in it, notes get nowhere.
    """

    def __init__(self, group: Transport) -> None:
        self.rank = group.rank
        self._own: npt.NDArray[np.uint8] | None = None
        self._views: list[npt.NDArray[np.uint8]] = []
        memory = group.shared_memory
        if memory is None or group.size == 1:
            return
        offset = -1
        made = memory.segment.allocate(memory.rank, NOTE_BYTES)
        if not isinstance(made, _native.Failure):
            self._own = made
            offset = int(memory.segment.offset_of(made.ctypes.data, NOTE_BYTES) or 0)
        word = offset.to_bytes(8, "little", signed=True)
        rows = group.allgather_bytes(word, name="notes of a host")
        offsets = [int.from_bytes(row, "little", signed=True) for row in rows]
        if min(offsets) >= 0:
            self._views = [memory.segment.view(each, NOTE_BYTES) for each in offsets]

    def leave(self, ending: Ending) -> None:
        """Say why this rank leaves; the length is written last."""
        if not self._views:
            return
        text = np.frombuffer(ending.encode(), dtype=np.uint8)
        note = self._views[self.rank]
        note[LENGTH_BYTES : LENGTH_BYTES + len(text)] = text
        note[:LENGTH_BYTES].view(np.uint16)[0] = len(text)

    def endings(self) -> dict[int, Ending]:
        """Return why other ranks left, by rank within the host."""
        found = {}
        for rank, note in enumerate(self._views):
            length = int(note[:LENGTH_BYTES].view(np.uint16)[0])
            if rank != self.rank and 0 < length <= MAX_BYTES:
                text = note[LENGTH_BYTES : LENGTH_BYTES + length].tobytes()
                found[rank] = Ending.decode(text)
        return found
