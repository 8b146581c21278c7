"""The memory that ranks of one host share: `Transport.shared_memory`, where a transport has any.

The layers above use it to allocate what collectives need not copy (`empty`), to share blocks by
their offset in the segment, and to run the engine and moves in the native core (`channel`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kadril import _native
from kadril.transport.buffer import Memory
from kadril.transport.failures import to_exception

__all__ = ["SharedMemory"]


class SharedMemory(NamedTuple):
    """The memory that all ranks of a group share, as this rank sees it.

    Attributes:
        segment: the shared segment.
        channel: the ordered meeting point of the group in it.
        rank: of this process in the segment, which may have more ranks than the group.
        world_ranks: world rank of each rank of the group.
    """

    segment: _native.Segment
    channel: _native.Channel
    rank: int
    world_ranks: tuple[int, ...]

    def empty(self, num_bytes: int) -> Memory:
        """Return memory that all ranks of the host can reach, zeroed.

        Local: each rank allocates for itself, and the memory is freed when the array dies. Where
        all ranks give such memory to a collective it is zero-copy.

        Raises:
            NoRoomError: there is not enough memory to share.
        """
        if num_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        memory = self.segment.allocate(self.rank, num_bytes)
        if isinstance(memory, _native.Failure):
            raise to_exception(memory, self.world_ranks)
        return memory
