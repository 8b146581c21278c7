"""Gradients on one host: posted to their owners during the backward pass, and nobody waits.

    backward()   a bucket that is whole is cut into blocks, which go into this rank's outbox as far
                 as there is room (outbox.py). Blocks that all ranks have posted are added up, each
                 rank its own part, from where they lie
    settle()     what is left goes the same way, while the last rank comes

    rank 0   post 0   post 1   add 0   post 2   add 1 2   settle ...
    rank 1            post 0   add 0   post 1   add 1     post 2   add 2   settle

So a rank may be ahead of the others by what fits into its outbox and some more, and ranks meet only
before parameters are written. A gradient is freed when this rank's part of it was added up, or
stays until the round ends, with sums in it (spare.py).

The order of additions does not depend on who comes first: within a block it is that of the ranks,
and blocks of several backward passes are added in the order of the passes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence

import torch

from kadril import _native
from kadril.sharded.ownership.bucket import Bucket, Scale
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.courier import Courier
from kadril.sharded.reduction.gradients import ReducedGradients
from kadril.sharded.reduction.meeting import Agreement, Wish
from kadril.sharded.reduction.outbox import CutBucket, cut_bucket, most_queued_bytes, open_outbox
from kadril.sharded.reduction.spare import SpareMemory, has_one_holder
from kadril.transport.buffer import TORCH_DTYPES

__all__ = ["PostedGradients"]

# Between two looks at what the others have posted. Few, so that a block is taken from the cache.
NUM_POSTED_AT_ONCE = 2

# A rank whose gradients wait for room waits with them, while others come nearer; seconds without
# any progress after which it goes on all the same, since a peer may be waiting for it elsewhere.
PATIENCE = 0.05

# Looks at the others, stepping aside, before sleeping in between; a look takes a microsecond.
NUM_LOOKS = 200
NAP = 5e-5


class Parcel:
    """The gradients of a bucket on their way.

    Attributes:
        flat: the gradients, one after the other; None where there are none.
        cut: the bucket and its blocks.
        is_ours: whether nobody else sees that memory.
        is_posted: whether all blocks are posted.
        has_sum: whether this rank's part is added up in place.
    """

    def __init__(self, flat: torch.Tensor | None, cut: CutBucket, *, is_ours: bool) -> None:
        self.flat = flat
        self.cut = cut
        self.is_ours = is_ours
        self.is_posted = False
        self.has_sum = False

    @property
    def num_bytes(self) -> int:
        """That it holds."""
        return 0 if self.flat is None else self.flat.nbytes


class Sent:
    """Blocks of a parcel that are posted and not taken.

    Attributes:
        parcel: that they are of.
        count: how many.
    """

    def __init__(self, parcel: Parcel, count: int) -> None:
        self.parcel = parcel
        self.count = count


class PostedGradients(ReducedGradients):
    """Reduces gradients through outboxes in shared memory; see `Gradients`.

    Where there is no such memory it does as its base does.
    """

    def __init__(self, shards: Shards, scale: Scale, courier: Courier | None) -> None:
        super().__init__(shards, scale, courier, stage=2)
        self._box: _native.Outbox | None = None
        self._blocks: list[tuple[CutBucket, int]] = []  # of a cycle: a bucket, and which of it
        self._cuts: dict[int, CutBucket] = {}  # by number of the bucket
        self._first = 0  # number of the first block of this round
        self._queue: deque[Parcel] = deque()  # to be posted
        self._num_queued_bytes = 0
        self._most_queued_bytes = 0  # where it waits for room
        self._num_walked = 0  # blocks posted and queued
        self._next_block = 0  # of the first parcel in the queue
        self._sent: deque[Sent] = deque()
        self._spare = SpareMemory()
        self._sum: torch.Tensor | None = None  # where the bucket at hand is added up
        self._is_fresh = True  # whether that is the bucket's own memory
        self._discarded = 0  # blocks before this number do not count
        self._ends: Sequence[int | None] = ()  # of each rank, once they are known
        self._is_patient = True

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Hear of the gradients of these buckets; collective."""
        super().watch(buckets)
        sizes = [bucket.num_bytes for bucket in self.shards.buckets if not bucket.plan.is_frozen]
        is_on_cpu = all(bucket.device.type == "cpu" for bucket in self.shards.buckets)
        self._box = open_outbox(self.transport, sizes) if is_on_cpu else None
        if self._box is not None:
            self._most_queued_bytes = most_queued_bytes(self._box, self.transport.size)
        self._cuts.clear()
        self._queue.clear()
        self._sent.clear()
        self._num_queued_bytes = self._num_walked = self._next_block = self._discarded = 0
        self.lay_out_blocks()

    def lay_out_blocks(self) -> None:
        """Number the blocks of a cycle, from the next one on."""
        if self._box is None:
            return
        self._first = self._box.num_posted
        cuts = [self.cut(bucket) for bucket in self._order]
        self._blocks = [(cut, place) for cut in cuts for place in range(len(cut.blocks))]

    def cut(self, bucket: Bucket) -> CutBucket:
        """A bucket and its blocks."""
        if bucket.number not in self._cuts:
            assert self._box is not None  # noqa: S101 - there are no blocks without
            self._cuts[bucket.number] = cut_bucket(bucket, self._box)
        return self._cuts[bucket.number]

    # ---- backward -------------------------------------------------------------------------------

    def begin_cycle(self) -> None:
        """Call the others to a cycle, where that is needed."""
        if self._box is None:
            super().begin_cycle()

    def send(self, bucket: Bucket, taken: list[torch.Tensor | None]) -> None:
        """Queue the gradients of a bucket, and post what there is room for."""
        if self._box is None:
            super().send(bucket, taken)
            return
        is_alone = has_one_holder(taken)
        flat, is_copy = bucket.flatten(taken)
        self.queue(Parcel(flat, self.cut(bucket), is_ours=is_alone or is_copy))
        del taken, flat
        self.go_on()
        if self._num_queued_bytes > self._most_queued_bytes and self._is_patient:
            self.wait_for_room(self._box)

    def queue(self, parcel: Parcel) -> None:
        """Have a parcel posted."""
        assert self._box is not None  # noqa: S101 - there are no parcels without
        self._queue.append(parcel)
        self._num_queued_bytes += parcel.num_bytes
        self._num_walked += len(parcel.cut.blocks)
        self._box.set_walked(self._num_walked)

    def go_on(self) -> bool:
        """Post and take what can be; True where anything could."""
        box = self._box
        assert box is not None  # noqa: S101 - only called with one
        before = (box.num_posted, box.num_taken)
        self.take_blocks(box)
        while self._queue and self.post_blocks(box):
            self.take_blocks(box)
        return before != (box.num_posted, box.num_taken)

    def post_blocks(self, box: _native.Outbox) -> bool:
        """Post some of the parcel that is first in the queue; False where there is no room."""
        parcel = self._queue[0]
        flat, blocks = parcel.flat, parcel.cut.blocks
        address = 0 if flat is None else flat.data_ptr()
        count = box.post(blocks, self._next_block, NUM_POSTED_AT_ONCE, address)
        if not count:
            return False
        if self._sent and self._sent[-1].parcel is parcel:
            self._sent[-1].count += count
        else:
            self._sent.append(Sent(parcel, count))
        self._next_block += count
        if self._next_block == len(blocks):
            self._next_block = 0
            parcel.is_posted = True
            self.spare_rest(parcel)
            self._num_queued_bytes -= parcel.num_bytes
            self._queue.popleft()
        return True

    def take_blocks(self, box: _native.Outbox) -> None:
        """Add up the blocks that all ranks have posted."""
        if self._ends:
            self.take_ended(box)
            return
        posted = box.all_posted()
        least = min(posted)
        while box.num_taken < least:
            self.take_some(box, posted, least - box.num_taken)

    def take_ended(self, box: _native.Outbox) -> None:
        """The same, where some ranks are known to post no more in this round."""
        while True:
            number = box.num_taken
            posted = box.all_posted()
            for rank, end in enumerate(self._ends):
                if end is not None:
                    posted[rank] = min(posted[rank], end)  # it may be in the next round already
            is_there = [
                count > number or end is not None
                for count, end in zip(posted, self._ends, strict=True)
            ]
            if not all(is_there) or number >= max(posted):
                return
            self.take_some(box, posted, 1)

    def take_some(self, box: _native.Outbox, posted: list[int], most: int) -> None:
        """Add up this rank's part of the next blocks, as far as they are of one bucket.

        Args:
            box: where they lie.
            posted: how many blocks each rank has posted, at least.
            most: that are there.
        """
        number = box.num_taken
        cut, first = self._blocks[(number - self._first) % len(self._blocks)]
        count = min(most, len(cut.blocks) - first)
        is_discarded = number < self._discarded
        if is_discarded:
            count = min(count, self._discarded - number)
        own: Parcel | None = None
        if number < box.num_posted:
            count = min(count, self._sent[0].count)
            own = self._sent[0].parcel
            self._sent[0].count -= count
            if not self._sent[0].count:
                self._sent.popleft()
        if is_discarded:
            box.skip(count)
            return
        if first == 0:
            self.begin_sum(cut.bucket, own)
        flat = None if own is None else own.flat
        self.add_up(box, cut, range(first, first + count), flat, posted)
        if first + count == len(cut.blocks):
            self.end_sum(cut.bucket)

    def add_up(
        self,
        box: _native.Outbox,
        cut: CutBucket,
        places: range,
        own: torch.Tensor | None,
        posted: list[int],
    ) -> None:
        """Sum the next blocks up, which are these of a bucket, in the order of the ranks."""
        total = self._sum
        assert total is not None  # noqa: S101 - begun with the first block
        box.add_up(
            cut.blocks,
            places.start,
            len(places),
            0 if own is None else own.data_ptr(),
            total.data_ptr(),
            posted,
            TORCH_DTYPES[total.dtype].code,
            self.scale.before,
            self.scale.after,
        )

    def begin_sum(self, bucket: Bucket, own: Parcel | None) -> None:
        """Add the bucket at hand up where its gradients are kept, if that is empty.

        Args:
            bucket: that is at hand.
            own: this rank's gradients of it.
        """
        self._is_fresh = not any(bucket.is_filled)
        if self._is_fresh and bucket.count and not bucket.has_gradients:
            memory = self._spare.take(bucket.count, bucket.dtype)
            if memory is None and own is not None and own.flat is not None and own.is_ours:
                memory = own.flat[bucket.begin : bucket.begin + bucket.count]
                own.has_sum = True
                self.spare_rest(own)
            if memory is not None:
                bucket.put_gradients(memory)
        self._sum = bucket.gradients if self._is_fresh else torch.empty_like(bucket.gradients)

    def spare_rest(self, parcel: Parcel) -> None:
        """Let sums go where the gradients of others were, once these are posted."""
        if parcel.flat is not None and parcel.has_sum and parcel.is_posted:
            bucket = parcel.cut.bucket
            self._spare.give(parcel.flat[: bucket.begin])
            self._spare.give(parcel.flat[bucket.begin + bucket.count :])

    def end_sum(self, bucket: Bucket) -> None:
        """The bucket at hand is added up."""
        if not self._is_fresh and self._sum is not None:
            bucket.add(self._sum)
        self._sum = None
        bucket.is_filled = [True] * len(bucket.members)
        self.has_news = True

    def reduce_one(self, place: int, gradient: torch.Tensor, name: str) -> None:
        """Reduce the gradient of one parameter, which lies elsewhere than in `.grad`."""
        bucket = self.shards.bucket_of(place)
        if self._sum is not None and self._is_fresh and self._sum is bucket.gradients:
            # Half added up: the rest must not fall on what comes now.
            self._sum = bucket.gradients.clone()
            self._is_fresh = False
        super().reduce_one(place, gradient, name)

    def wait_for_room(self, box: _native.Outbox) -> None:
        """Wait while others come nearer, rather than hold more and more gradients."""
        end = self._first + -(-(self._num_walked - self._first) // len(self._blocks)) * len(
            self._blocks
        )
        since = time.monotonic()
        while self._num_queued_bytes > self._most_queued_bytes:
            laggards = box.laggards()
            if box.are_settling():
                # They sleep until all have come, so a meeting wakes them at once.
                self._ends = self.meet(Wish.CYCLE, 0, num_posted=box.num_posted, has_more=True).ends
            elif any(box.walked(rank) >= end or box.is_settling(rank) for rank in laggards):
                return  # it is through with this pass, and may need us before it comes here again
            elif time.monotonic() - since > PATIENCE:
                self._is_patient = False
                return
            else:
                time.sleep(NAP)
            if self.go_on():
                since = time.monotonic()

    # ---- settle ---------------------------------------------------------------------------------

    def agree(self, wish: Wish, digest: int) -> Agreement:
        """Wait until all ranks want the same, and all blocks are added up; collective."""
        box = self._box
        if box is None:
            return super().agree(wish, digest)
        self.go_on()
        box.set_settling(True)
        try:
            while True:
                self.help_others(box)
                agreement = self.meet(
                    wish, digest, num_posted=box.num_posted, has_more=bool(self._queue)
                )
                self._ends = agreement.ends
                self.go_on()
                if not agreement.wants_cycle and None not in agreement.ends:
                    break  # also where they are to be told that they cannot go on
            box.skip_to(box.num_taken)
            self._spare.clear()
            self._num_walked = box.num_posted
        finally:
            self._ends = ()
            box.set_settling(False)
        self._is_patient = True
        # A rank that has dropped stays so where ranks cannot go on together.
        self._discarded = sys.maxsize if self._is_held else 0
        self._first = box.num_posted
        agreement.check()
        return agreement

    def start_over(self, agreement: Agreement) -> None:
        """Forget sums that have dropped gradients in them; all ranks are here."""
        self._discarded = 0
        super().start_over(agreement)

    def help_others(self, box: _native.Outbox) -> None:
        """Add up what comes, until all ranks are here or nothing comes for a while."""
        num_looks = 0
        since = time.monotonic()
        while not box.are_settling():
            if self.go_on():
                num_looks, since = 0, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                return
            elif num_looks < NUM_LOOKS:
                num_looks += 1
                os.sched_yield()
            else:
                time.sleep(NAP)

    def learn_order(self) -> None:
        """Let the next cycles go in the order in which gradients came on rank 0; collective."""
        super().learn_order()
        self.lay_out_blocks()

    # ---- between rounds -------------------------------------------------------------------------

    def drop_round(self) -> None:
        """Forget what came; peers count on the rest of a cycle, and get nothing in its place."""
        if self._box is None:
            super().drop_round()
            return
        for parcel in self._queue:
            parcel.flat = None
        self._num_queued_bytes = 0
        while self._turn:
            bucket = self._order[self._turn]
            self._turn = (self._turn + 1) % len(self._order)
            self.queue(Parcel(None, self.cut(bucket), is_ours=False))
        self._spare.clear()
        self._sum = None
        self.hold()
        # Nothing counts that was given before all ranks know of the drop.
        self._discarded = sys.maxsize if self._is_held else self._num_walked
        self.forget()
        self.forget_sums()
