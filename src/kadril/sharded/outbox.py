"""Outboxes: what each rank of a host has for the others, in memory that all see.

    rank 0   | slot 0 | slot 1 | ... |      a block lies in a slot until all have taken it
    rank 1   | slot 0 | slot 1 | ... |
               |
               | for rank 0 | for rank 2 | ... |        each begins at a cache line

Blocks are numbered, alike on all ranks. Beside its slots each rank has words that it alone writes:

    posted      blocks that lie in its slots, or did
    taken       blocks of which it needs nothing any more, from anybody
    walked      blocks that it has, posted or still to be posted
    settling    whether it is done with its backward passes, and waits for the others
    marks       of the last blocks: in which slot they lie

A rank posts block n when all have taken block n - NUM_SLOTS, and takes block n when all have posted
it. Nothing here waits.
"""

from __future__ import annotations

import platform
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from kadril import _native
from kadril.sharded.memory import share_block
from kadril.sharded.plan import LINE_BYTES
from kadril.transport.base import Transport

__all__ = ["Outbox", "open_outbox"]

WORDS_PER_LINE = LINE_BYTES // 8

# A rank may be ahead by so many blocks. The slot that was emptied last is filled next, so that few
# are in use, and in the cache, while ranks keep pace.
NUM_SLOTS = 2 * WORDS_PER_LINE

# Of a rank's slots together: this part of all gradients, and the largest that goes at once, within
# bounds. So a rank may be ahead by some layers, and its outbox is small beside the optimizer state.
SHARE_OF_GRADIENTS = 1 / 8
LEAST_BYTES = 1 << 16
MOST_BYTES = 1 << 26

POSTED, TAKEN, WALKED, SETTLING, MARKS = (line * WORDS_PER_LINE for line in range(5))
NUM_HEAD_WORDS = MARKS + NUM_SLOTS  # of a rank


def keep_order() -> Callable[[], None] | None:
    """A barrier: what was read and written before it is done before what comes after it.

    None where it is not needed: processors of the x86 family never change the order of stores, nor
    of loads, nor do a store before an earlier load. For others a lock let go and taken again does
    it: nothing sinks below the one or rises above the other.
    """
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return None
    lock = threading.Lock()

    def barrier() -> None:
        with lock:
            pass
        with lock:
            pass

    return barrier


class Outbox:
    """The outboxes of all ranks, as one of them sees them.

    Args:
        block: shared bytes, zeroed; see `num_bytes`.
        slot_bytes: of a slot.
        rank: of this process.
        size: number of ranks.

    Attributes:
        bytes_for_one: room for one receiver in a slot.
        most_queued_bytes: that a rank should hold beside its outbox.
        num_posted: blocks that this rank has posted.
        num_taken: blocks that this rank has taken.
    """

    def __init__(self, block: torch.Tensor, slot_bytes: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.slot_bytes = slot_bytes
        self.bytes_for_one = slot_bytes // (size - 1) // LINE_BYTES * LINE_BYTES
        self.most_queued_bytes = 2 * NUM_SLOTS * slot_bytes
        self.num_posted = self.num_taken = 0
        num_head_bytes = self.head_bytes(size)
        # Much quicker than an array for one word at a time; keeps the block alive.
        self._words = memoryview(block[:num_head_bytes].numpy().data).cast("q")
        self._slots = block.data_ptr() + num_head_bytes
        self._heads = [each * NUM_HEAD_WORDS for each in range(size)]
        self._own = self._heads[rank]
        self._others = [each for each in range(size) if each != rank]
        self._empty = list(range(NUM_SLOTS))
        self._full: deque[tuple[int, int]] = deque()  # number of a block, and its slot
        self._least_taken = 0
        self._keep_order = keep_order()

    @staticmethod
    def head_bytes(size: int) -> int:
        """Of the words of all ranks."""
        return size * NUM_HEAD_WORDS * 8

    @staticmethod
    def num_bytes(slot_bytes: int, size: int) -> int:
        """Of the block of all ranks."""
        return Outbox.head_bytes(size) + size * NUM_SLOTS * slot_bytes

    # ---- words ----------------------------------------------------------------------------------

    def _write(self, word: int, value: int) -> None:
        if self._keep_order is not None:
            self._keep_order()
        self._words[self._own + word] = value

    def all_posted(self) -> list[int]:
        """Blocks that each rank has posted; they may be read."""
        words = self._words
        posted = [words[head + POSTED] for head in self._heads]
        if self._keep_order is not None:
            self._keep_order()
        return posted

    @property
    def has_room(self) -> bool:
        """Whether the next block may be posted."""
        oldest = self.num_posted - NUM_SLOTS
        if self._least_taken <= oldest:
            words = self._words
            self._least_taken = min([words[head + TAKEN] for head in self._heads])
        return self._least_taken > oldest

    def laggards(self) -> list[int]:
        """The ranks that still need what the next block would replace."""
        oldest = self.num_posted - NUM_SLOTS
        return [
            rank for rank, head in enumerate(self._heads) if self._words[head + TAKEN] <= oldest
        ]

    def set_walked(self, number: int) -> None:
        """Say how many blocks this rank has, posted or not."""
        self._write(WALKED, number)

    def walked(self, rank: int) -> int:
        """Blocks that a rank has, posted or not."""
        return self._words[self._heads[rank] + WALKED]

    def set_settling(self, is_settling: bool) -> None:
        """Say whether this rank waits for the others."""
        self._write(SETTLING, int(is_settling))

    def is_settling(self, rank: int) -> bool:
        """Whether a rank waits."""
        return bool(self._words[self._heads[rank] + SETTLING])

    def are_settling(self) -> bool:
        """Whether all others wait."""
        return all(self.is_settling(rank) for rank in self._others)

    # ---- blocks ---------------------------------------------------------------------------------

    def lane(self, sender: int, receiver: int) -> int:
        """Where in a slot what a rank gives another lies."""
        return (receiver - (receiver > sender)) * self.bytes_for_one

    def post(self, address: int, parts: Sequence[tuple[int, int, int]]) -> None:
        """Give the next block; there has to be room.

        Args:
            address: of what the parts are of.
            parts: place in the slot, offset from the address, and bytes of each.
        """
        slot = self._empty_slot()
        place = self._slots + (self.rank * NUM_SLOTS + slot) * self.slot_bytes
        for lane, offset, num_bytes in parts:
            _native.copy_memory(place + lane, address + offset, num_bytes)
        self._full.append((self.num_posted, slot))
        self._post(slot + 1)

    def post_nothing(self) -> None:
        """Give nothing for the next block; there has to be room."""
        self._post(0)

    def _post(self, mark: int) -> None:
        self._words[self._own + MARKS + self.num_posted % NUM_SLOTS] = mark
        self.num_posted += 1
        self._write(POSTED, self.num_posted)

    def _empty_slot(self) -> int:
        words = self._words
        least = min([words[head + TAKEN] for head in self._heads])
        while self._full and self._full[0][0] < least:
            self._empty.append(self._full.popleft()[1])
        return self._empty.pop()

    def address_from(self, sender: int, number: int) -> int | None:
        """Where a block of another rank for this one lies; None where it gave nothing."""
        mark = self._words[self._heads[sender] + MARKS + number % NUM_SLOTS]
        if not mark:
            return None
        slot = sender * NUM_SLOTS + mark - 1
        return self._slots + slot * self.slot_bytes + self.lane(sender, self.rank)

    def take(self) -> None:
        """Say that this rank has all that it needs of the next block."""
        self.num_taken += 1
        self._write(TAKEN, self.num_taken)

    def skip_to(self, number: int) -> None:
        """Go on with a block, alike on all ranks, as if those before had come; all are taken."""
        self.num_posted = number
        self._write(POSTED, number)
        self._write(WALKED, number)


def open_outbox(transport: Transport, bucket_bytes: Sequence[int]) -> Outbox | None:
    """Outboxes for gradients; collective. None where ranks share no memory.

    Args:
        transport: of the ranks.
        bucket_bytes: what goes at once.
    """
    size = transport.size
    if size == 1 or not any(bucket_bytes):
        return None
    wanted = max(
        int(SHARE_OF_GRADIENTS * sum(bucket_bytes)), max(bucket_bytes) * (size - 1) // size
    )
    total = min(max(wanted, LEAST_BYTES, NUM_SLOTS * size * LINE_BYTES), MOST_BYTES)
    slot_bytes = -(-total // NUM_SLOTS // LINE_BYTES) * LINE_BYTES
    block = share_block(
        transport,
        Outbox.num_bytes(slot_bytes, size),
        otherwise="ranks wait for each other in every reduction",
    )
    return None if block is None else Outbox(block, slot_bytes, transport.rank, size)
