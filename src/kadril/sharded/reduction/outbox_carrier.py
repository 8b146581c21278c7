"""Gradients through outboxes in shared memory: nobody waits in a backward pass.

    backward()   a bucket that is complete is cut into blocks, which go into this rank's outbox as
                 far as there is room (outgoing.py). Blocks that all ranks have posted are added up
                 from where they lie, each rank its own part (bucket_sums.py)
    settle()     what is left goes the same way, while the last rank comes

    rank 0   post 0   post 1   add 0   post 2   add 1 2   settle ...
    rank 1            post 0   add 0   post 1   add 1     post 2   add 2   settle

So a rank may be ahead of the others by what fits into its outbox and as much again, and ranks meet
only before parameters are written. A gradient is freed when this rank's part of it was added up, or
stays until the round ends, with sums in it (recycled_memory.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import torch

from kadril import _native
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.gradient_memory import Scale, Scratch
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.bucket_sums import BucketSums
from kadril.sharded.reduction.carrier import Ask, Hold
from kadril.sharded.reduction.intent import Agreement, Intent, exchange_intents
from kadril.sharded.reduction.outbox import CutBucket, cut_bucket, queue_limit
from kadril.sharded.reduction.outgoing import Outgoing, SendQueue

__all__ = ["OutboxCarrier"]

# A rank whose gradients wait for room waits with them, while others come nearer; seconds without
# any progress after which it continues anyway, since a peer may be waiting for it elsewhere.
PATIENCE = 0.05

# Polls of the other ranks, with `sched_yield` between them, before polls are NAP seconds apart.
NUM_POLLS = 200
NAP = 5e-5


class OutboxCarrier:
    """Posts gradients to outboxes, and adds up what all ranks have posted; a `Carrier`.

    Args:
        shards: parameters and their buckets.
        scale: of gradients, before and after they are added up.
        box: outboxes of all ranks.
    """

    def __init__(self, shards: Shards, scale: Scale, box: _native.Outbox) -> None:
        self._shards = shards
        self._scale = scale
        self._box = box
        self._scratch = Scratch(shards.transport)
        self._queue = SendQueue(box)
        self._queue_limit = queue_limit(box, shards.transport.size)
        self._sums = BucketSums(box, scale)
        self._cuts: dict[int, CutBucket] = {}  # by number of the bucket
        self._blocks: list[tuple[CutBucket, int]] = []  # of a cycle: a bucket, and which of it
        self._first = 0  # number of the first block of this round
        self._ends: Sequence[int | None] = ()  # of each rank's blocks, while they are known
        self._lent: Outgoing | None = None  # what the caller of `send` still refers to
        self._is_held = False  # nothing that was posted counts, nor what will be
        self._num_dropped = 0  # nor blocks before this one
        self._is_patient = True

    def set_order(self, buckets: Sequence[Bucket]) -> None:
        """Number the blocks of a cycle, from the next one on."""
        self._first = self._box.num_posted
        cuts = [self._cut(bucket) for bucket in buckets]
        self._blocks = [(cut, place) for cut in cuts for place in range(len(cut.blocks))]

    def _cut(self, bucket: Bucket) -> CutBucket:
        if bucket.number not in self._cuts:
            self._cuts[bucket.number] = cut_bucket(bucket, self._box)
        return self._cuts[bucket.number]

    # ---- backward -------------------------------------------------------------------------------

    def begin_cycle(self) -> None:
        """Do nothing: others need not come."""

    def send(
        self, bucket: Bucket, gradients: list[torch.Tensor | None], hold: Hold = Hold.NOTHING
    ) -> None:
        """Queue the gradients of a bucket, and post what there is room for.

        What is lent is added up in the next call only: its lender has let go of it by then, and the
        sum may be put into its memory. Sums in memory of their own took a tenth of a compiled
        backward pass; and where gradients are not in the cache any more, adding them up takes
        twice as long. So graphs give what they do not read again.
        """
        # In no variable: a reference from here, too, would keep the sum out of the gradients.
        outgoing = Outgoing(
            self._cut(bucket), bucket.flatten(gradients), is_given=hold is Hold.GIVEN
        )
        self._lent = outgoing if hold is Hold.LENT else None
        self._queue.append(outgoing)
        gradients.clear()  # so that nothing else here refers to them: sums may be written into them
        self._go_on()
        self._limit_queue()

    def reduce(self, bucket: Bucket, gradients: list[torch.Tensor | None]) -> None:
        """Reduce a bucket outside of cycles, with all ranks at the same time."""
        bucket.reduce(gradients, self._scale, self._scratch, keeps=not self._is_held)

    def wait(self) -> None:
        """Do nothing: there is no thread."""

    def _go_on(self) -> bool:
        """Post and add up what can be; True where anything could."""
        box = self._box
        before = (box.num_posted, box.num_taken)
        self._add_blocks()
        while self._queue:
            outgoing = self._queue.post()
            if outgoing is None:
                break
            self._sums.recycle(outgoing)
            self._add_blocks()
        return before != (box.num_posted, box.num_taken)

    def _add_blocks(self) -> None:
        """Add up the blocks that all ranks have posted."""
        if self._ends:
            self._add_last_blocks(self._ends)
            return
        box = self._box
        posted = box.all_posted()
        least = min(posted)
        while box.num_taken < least and not self._has_lent_next():
            self._add_some(posted, least - box.num_taken)

    def _has_lent_next(self) -> bool:
        """Whether the next block to add up is of gradients that are lent."""
        return self._lent is not None and self._queue.first_posted is self._lent

    def _add_last_blocks(self, ends: Sequence[int | None]) -> None:
        """The same, where some ranks are known to post no more in this round."""
        while True:
            number = self._box.num_taken
            posted = self._box.all_posted()
            for rank, end in enumerate(ends):
                if end is not None:
                    posted[rank] = min(posted[rank], end)  # it may be in the next round already
            is_there = [
                count > number or end is not None for count, end in zip(posted, ends, strict=True)
            ]
            if not all(is_there) or number >= max(posted):
                return
            self._add_some(posted, 1)

    def _add_some(self, posted: list[int], most: int) -> None:
        """Add up this rank's part of the next blocks, as far as they are of one bucket.

        Args:
            posted: how many blocks each rank has posted, at least.
            most: number of blocks that are there.
        """
        box = self._box
        number = box.num_taken
        cut, first = self._blocks[(number - self._first) % len(self._blocks)]
        count = min(most, len(cut.blocks) - first)
        dropped = sys.maxsize if self._is_held else self._num_dropped
        if number < dropped:
            count = min(count, dropped - number)
        own: Outgoing | None = None
        if number < box.num_posted:
            own, count = self._queue.take(count)
        if number < dropped:
            box.skip(count)
        else:
            self._sums.add(cut, range(first, first + count), own, posted)

    def _limit_queue(self) -> None:
        """Wait while others come nearer, rather than hold more and more gradients."""
        if self._queue.num_bytes <= self._queue_limit or not self._is_patient:
            return
        box = self._box
        self._lent = None  # others wait for room until it is added up
        length = len(self._blocks)
        end_of_cycle = self._first + -(-(self._queue.num_walked - self._first) // length) * length
        since = time.monotonic()
        while self._queue.num_bytes > self._queue_limit:
            laggards = box.laggards()
            if box.are_settling():
                # They sleep until all have come, so an exchange wakes them at once.
                self._ends = self._tell_that_there_is_more().ends
            elif any(
                box.walked(rank) >= end_of_cycle or box.is_settling(rank) for rank in laggards
            ):
                return  # it has sent all of this pass, and may wait for us before it sends more
            elif time.monotonic() - since > PATIENCE:
                self._is_patient = False
                return
            else:
                time.sleep(NAP)
            if self._go_on():
                since = time.monotonic()

    def _tell_that_there_is_more(self) -> Agreement:
        return exchange_intents(
            self._shards.transport,
            Intent.CYCLE,
            num_parameters=len(self._shards.parameters.tensors),
            num_posted=self._box.num_posted,
            has_more=True,
        )

    # ---- settle ---------------------------------------------------------------------------------

    def drain(self, ask: Ask, finish_cycle: Callable[[], None]) -> Agreement:
        """Post and add up until all ranks are done; what a rank has not posted counts as zeros."""
        box = self._box
        self._lent = None
        self._go_on()
        box.set_settling(True)
        try:
            while True:
                self._help_others()
                agreement = ask(num_posted=box.num_posted, has_more=bool(self._queue))
                self._ends = agreement.ends
                self._go_on()
                if not agreement.wants_cycle and None not in agreement.ends:
                    break  # also where they are to learn that they cannot continue
            box.skip_to(box.num_taken)
            self._sums.release()
            self._queue.reset()
        finally:
            self._ends = ()
            box.set_settling(False)
        self._is_patient = True
        self._num_dropped = 0
        self._first = box.num_posted
        agreement.check()
        return agreement

    def _help_others(self) -> None:
        """Add up what comes, until all ranks are here or nothing comes for a while."""
        num_polls = 0
        since = time.monotonic()
        while not self._box.are_settling():
            if self._go_on():
                num_polls, since = 0, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                return
            elif num_polls < NUM_POLLS:
                num_polls += 1
                os.sched_yield()
            else:
                time.sleep(NAP)

    # ---- between rounds -------------------------------------------------------------------------

    def drop(
        self, rest: Sequence[Bucket], forget_sums: Callable[[], None], *, is_held: bool
    ) -> None:
        """Queue the rest of a cycle without gradients, and count nothing that was given before."""
        self._queue.drop()
        for bucket in rest:
            self._queue.append(Outgoing(self._cut(bucket), None))
        self._sums.forget()
        self._is_held |= is_held
        self._num_dropped = self._queue.num_walked
        forget_sums()

    def restart(self) -> None:
        """Count again what is posted from now on; all ranks are here."""
        self._is_held = False
        self._num_dropped = 0
