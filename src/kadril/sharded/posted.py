"""Gradients on one host: posted to their owners during the backward pass, and nobody waits.

    backward()   a bucket that is whole is cut into blocks, which go into this rank's outbox as far
                 as there is room (outbox.py). Blocks that all ranks have posted are added up, each
                 rank its own part, from where they lie
    settle()     what is left goes the same way, while the last rank comes

    rank 0   post 0   post 1   add 0   post 2   add 1 2   settle ...
    rank 1            post 0   add 0   post 1   add 1     post 2   add 2   settle

So a rank may be ahead of the others by what fits into its outbox and some more, and ranks meet only
before parameters are written. A gradient is freed when this rank's part of it was added up.

The order of additions does not depend on who comes first: within a block it is that of the ranks,
and blocks of several backward passes are added in the order of the passes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril import _native
from kadril.sharded.bucket import Bucket, Scale
from kadril.sharded.gradients import ReducedGradients
from kadril.sharded.meeting import Agreement, Wish
from kadril.sharded.outbox import Outbox, open_outbox
from kadril.sharded.shards import Shards
from kadril.transport.base import OPS
from kadril.transport.buffer import TORCH_DTYPES

__all__ = ["PostedGradients"]

SUM = OPS.index("sum")

# A rank whose gradients wait for room waits with them, while others come nearer; seconds without
# any progress after which it goes on all the same, since a peer may be waiting for it elsewhere.
PATIENCE = 0.05

# Looks at the others, stepping aside, before sleeping in between; a look takes a microsecond.
NUM_LOOKS = 200
NAP = 5e-5


class Block(NamedTuple):
    """A piece of each rank's part of a bucket, posted and taken at once.

    Attributes:
        bucket: it is of.
        is_first: whether it is the first of the bucket.
        is_last: whether it is the last of the bucket.
        parts: what goes to other ranks; see `Outbox.post`.
        source: offset in bytes of what stays here, in the gradients of the bucket.
        target: offset in bytes in this rank's part of them.
        begin: the same in elements.
        num_elements: that stay here.
    """

    bucket: Bucket
    is_first: bool
    is_last: bool
    parts: tuple[tuple[int, int, int], ...]
    source: int
    target: int
    begin: int
    num_elements: int


def cut_bucket(bucket: Bucket, box: Outbox) -> list[Block]:
    """The blocks of a bucket."""
    item = bucket.dtype.itemsize
    counts = bucket.plan.counts
    length = box.bytes_for_one // item
    begins = [sum(counts[:rank]) for rank in range(len(counts))]
    num_blocks = max(1, -(-max(counts) // length))
    blocks = []
    for number in range(num_blocks):
        begin = number * length
        lengths = [max(0, min(length, count - begin)) for count in counts]
        parts = tuple(
            (box.lane(box.rank, rank), (begins[rank] + begin) * item, lengths[rank] * item)
            for rank in range(len(counts))
            if rank != box.rank and lengths[rank]
        )
        source, is_last = (bucket.begin + begin) * item, number == num_blocks - 1
        own = (source, begin * item, begin, lengths[box.rank])
        blocks.append(Block(bucket, number == 0, is_last, parts, *own))
    return blocks


class Parcel:
    """The gradients of a bucket on their way.

    Attributes:
        flat: the gradients, one after the other; None where there are none.
        blocks: that it is cut into.
    """

    def __init__(self, flat: torch.Tensor | None, blocks: Sequence[Block]) -> None:
        self.flat = flat
        self.blocks = blocks

    @property
    def num_bytes(self) -> int:
        """That it holds."""
        return 0 if self.flat is None else self.flat.numel() * self.flat.element_size()


class PostedGradients(ReducedGradients):
    """Reduces gradients through outboxes in shared memory; see `Gradients`.

    Where there is no such memory it does as its base does.
    """

    def __init__(self, shards: Shards, scale: Scale) -> None:
        super().__init__(shards, scale, stage=2)
        self._box: Outbox | None = None
        self._blocks: list[Block] = []  # of a cycle
        self._cuts: dict[int, list[Block]] = {}  # by number of the bucket
        self._first = 0  # number of the first block of this round
        self._queue: deque[Parcel] = deque()  # to be posted
        self._num_queued_bytes = 0
        self._num_walked = 0  # blocks posted and queued
        self._next_block = 0  # of the first parcel in the queue
        self._sent: deque[torch.Tensor | None] = deque()  # of blocks that are posted and not taken
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
        self._blocks = [block for bucket in self._order for block in self.blocks_of(bucket)]

    def blocks_of(self, bucket: Bucket) -> list[Block]:
        """The blocks of a bucket."""
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
        self.queue(Parcel(bucket.flatten(taken), self.blocks_of(bucket)))
        del taken
        self.go_on()
        if self._num_queued_bytes > self._box.most_queued_bytes and self._is_patient:
            self.wait_for_room(self._box)

    def queue(self, parcel: Parcel) -> None:
        """Have a parcel posted."""
        assert self._box is not None  # noqa: S101 - there are no parcels without
        self._queue.append(parcel)
        self._num_queued_bytes += parcel.num_bytes
        self._num_walked += len(parcel.blocks)
        self._box.set_walked(self._num_walked)

    def go_on(self) -> bool:
        """Post and take what can be; True where anything could."""
        box = self._box
        assert box is not None  # noqa: S101 - only called with one
        before = (box.num_posted, box.num_taken)
        self.take_blocks(box)
        while self._queue and box.has_room:
            self.post_block(box)
            self.take_blocks(box)
        return before != (box.num_posted, box.num_taken)

    def post_block(self, box: Outbox) -> None:
        """Post the next block in the queue."""
        parcel = self._queue[0]
        flat = parcel.flat
        if flat is None:
            box.post_nothing()
        else:
            box.post(flat.data_ptr(), parcel.blocks[self._next_block].parts)
        self._sent.append(flat)
        self._next_block += 1
        if self._next_block == len(parcel.blocks):
            self._next_block = 0
            self._num_queued_bytes -= parcel.num_bytes
            self._queue.popleft()

    def take_blocks(self, box: Outbox) -> None:
        """Add up the blocks that all ranks have posted."""
        if self._ends:
            self.take_ended(box)
            return
        posted = box.all_posted()
        least = min(posted)
        while box.num_taken < least:
            self.take_block(box, posted)

    def take_ended(self, box: Outbox) -> None:
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
            self.take_block(box, posted)

    def take_block(self, box: Outbox, posted: Sequence[int]) -> None:
        """Add up this rank's part of the next block.

        Args:
            box: where it lies.
            posted: how many blocks each rank has posted, at least.
        """
        number = box.num_taken
        block = self._blocks[(number - self._first) % len(self._blocks)]
        own = self._sent.popleft() if number < box.num_posted else None
        if number >= self._discarded:
            if block.is_first:
                self.begin_sum(block.bucket)
            if block.num_elements:
                self.add_up(block, self.addresses(box, block, own, posted))
            if block.is_last:
                self.end_sum(block.bucket)
        box.take()

    def addresses(
        self, box: Outbox, block: Block, own: torch.Tensor | None, posted: Sequence[int]
    ) -> list[int]:
        """Where this rank's part of a block lies, of each rank that has one."""
        number = box.num_taken
        found = []
        for rank, count in enumerate(posted):
            if rank == box.rank:
                address = None if own is None else own.data_ptr() + block.source
            else:
                address = box.address_from(rank, number) if number < count else None
            if address is not None:
                found.append(address)
        return found

    def begin_sum(self, bucket: Bucket) -> None:
        """Add the bucket at hand up where its gradients are kept, if that is empty."""
        self._is_fresh = not any(bucket.is_filled)
        self._sum = bucket.gradients if self._is_fresh else torch.empty_like(bucket.gradients)

    def add_up(self, block: Block, sources: Sequence[int]) -> None:
        """Sum up what lies at addresses, in the order of the ranks."""
        total = self._sum
        assert total is not None  # noqa: S101 - begun with the first block
        if not sources:
            total[block.begin : block.begin + block.num_elements].zero_()
            return
        targets = [total.data_ptr() + block.target]
        code = TORCH_DTYPES[total.dtype].code
        _native.reduce_local(
            targets, sources, block.num_elements, code, SUM, self.scale.before, self.scale.after
        )

    def end_sum(self, bucket: Bucket) -> None:
        """The bucket at hand is added up."""
        if not self._is_fresh and self._sum is not None:
            bucket.add(self._sum)
        self._sum = None
        bucket.is_filled = [True] * len(bucket.members)

    def reduce_one(self, place: int, gradient: torch.Tensor, name: str) -> None:
        """Reduce the gradient of one parameter, which lies elsewhere than in `.grad`."""
        bucket = self.shards.bucket_of(place)
        if self._sum is not None and self._is_fresh and self._sum is bucket.gradients:
            # Half added up: the rest must not fall on what comes now.
            self._sum = bucket.gradients.clone()
            self._is_fresh = False
        super().reduce_one(place, gradient, name)

    def wait_for_room(self, box: Outbox) -> None:
        """Wait while others come nearer, rather than hold more and more gradients."""
        end = self._first + -(-(self._num_walked - self._first) // len(self._blocks)) * len(
            self._blocks
        )
        since = time.monotonic()
        while self._num_queued_bytes > box.most_queued_bytes:
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
                    break
            box.skip_to(box.num_taken)
            self._num_walked = box.num_posted
        finally:
            self._ends = ()
            box.set_settling(False)
        self._is_patient = True
        self._discarded = 0
        self._first = box.num_posted
        return agreement

    def help_others(self, box: Outbox) -> None:
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
            self.queue(Parcel(None, self.blocks_of(bucket)))
        self._discarded = self._num_walked
        self._sum = None
        for bucket in self.shards.buckets:
            bucket.forget_arrivals()
        self.begin_round()
