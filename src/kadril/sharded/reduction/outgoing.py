"""Gradients on their way out: queued until there is room in the outbox, then posted block by block.

    queue                        outbox                          added up
    | bucket 4 | bucket 3 | -->  | .. bucket 3 | bucket 2 .. | -->  | bucket 1 |

A bucket is posted when others can read their parts; this rank's own part is needed until it is
added up.
"""

from __future__ import annotations

from collections import deque

import torch

from kadril import _native
from kadril.sharded.reduction.outbox import CutBucket
from kadril.sharded.reduction.recycled_memory import is_unshared, is_writable

__all__ = ["Outgoing", "SendQueue"]

# Between two looks at what the others have posted. Few, so that a block is taken from the cache.
NUM_POSTED_AT_ONCE = 2


class Outgoing:
    """The gradients of one bucket on their way.

    Args:
        cut: the bucket and its blocks.
        flat: its gradients, one after the other; None where there are none.
        is_given: whether nobody reads or writes them any more, whoever refers to them.

    Attributes:
        has_sum: whether this rank's part is added up in place.
        is_posted: whether all blocks are posted.
    """

    def __init__(
        self, cut: CutBucket, flat: torch.Tensor | None, *, is_given: bool = False
    ) -> None:
        self.cut = cut
        # Views keep what they were made of alive; this one is to be the last to hold its memory.
        self.flat = None if flat is None else flat.data
        self.is_posted = False
        self.has_sum = False
        self._is_given = is_given

    @property
    def num_bytes(self) -> int:
        """Size of the gradients."""
        return 0 if self.flat is None else self.flat.nbytes

    @property
    def address(self) -> int:
        """Address of the gradients; 0 for none."""
        return 0 if self.flat is None else self.flat.data_ptr()

    @property
    def is_private(self) -> bool:
        """Whether nobody else sees the memory of the gradients."""
        if self.flat is None:
            return False
        return is_writable(self.flat) if self._is_given else is_unshared(self.flat)

    @property
    def own_part(self) -> torch.Tensor | None:
        """This rank's part of the gradients, where there are any."""
        if self.flat is None:
            return None
        bucket = self.cut.bucket
        return self.flat[bucket.begin : bucket.begin + bucket.count]

    def drop(self) -> None:
        """Forget the gradients; its blocks are posted empty."""
        self.flat = None


class SendQueue:
    """Queue of gradients to post, and of those that are posted and not yet added up.

    Args:
        box: where to post it.

    Attributes:
        num_bytes: size of the gradients that wait for room.
    """

    def __init__(self, box: _native.Outbox) -> None:
        self._box = box
        self._waiting: deque[Outgoing] = deque()
        self._posted: deque[tuple[Outgoing, int]] = deque()  # with the number of blocks
        self._next_block = 0  # of the first one that waits
        self._num_walked = 0  # blocks posted and waiting
        self.num_bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits for room."""
        return bool(self._waiting)

    @property
    def num_walked(self) -> int:
        """Number of blocks that were given, posted or not."""
        return self._num_walked

    @property
    def first_posted(self) -> Outgoing | None:
        """The oldest bucket of which blocks are posted and not added up."""
        return self._posted[0][0] if self._posted else None

    def append(self, outgoing: Outgoing) -> None:
        """Have the gradients of a bucket posted, after those before it."""
        self._waiting.append(outgoing)
        self.num_bytes += outgoing.num_bytes
        self._num_walked += len(outgoing.cut.blocks)
        self._box.set_walked(self._num_walked)

    def post(self) -> Outgoing | None:
        """Post some blocks of the first bucket that waits.

        Returns:
            The bucket, None where there is no room.
        """
        outgoing = self._waiting[0]
        blocks = outgoing.cut.blocks
        count = self._box.post(blocks, self._next_block, NUM_POSTED_AT_ONCE, outgoing.address)
        if not count:
            return None
        if self._posted and self._posted[-1][0] is outgoing:
            count_before = self._posted.pop()[1]
            self._posted.append((outgoing, count_before + count))
        else:
            self._posted.append((outgoing, count))
        self._next_block += count
        if self._next_block == len(blocks):
            self._next_block = 0
            outgoing.is_posted = True
            self.num_bytes -= outgoing.num_bytes
            self._waiting.popleft()
        return outgoing

    def take(self, most: int) -> tuple[Outgoing, int]:
        """Give up to so many of the oldest posted blocks, of one bucket, to be added up."""
        outgoing, count = self._posted.popleft()
        taken = min(most, count)
        if taken < count:
            self._posted.appendleft((outgoing, count - taken))
        return outgoing, taken

    def drop(self) -> None:
        """Forget the gradients that wait; their blocks are posted empty."""
        for outgoing in self._waiting:
            outgoing.drop()
        self.num_bytes = 0

    def reset(self) -> None:
        """Count blocks from those that were posted on; all are added up."""
        self._num_walked = self._box.num_posted
