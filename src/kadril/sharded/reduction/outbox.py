"""Outboxes in shared memory, and buckets cut into the blocks that go through them.

A rank posts blocks to its own outbox, and adds up its part of those that all ranks have posted;
nobody waits (native/outbox.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kadril import _native
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.ownership_plan import LINE_BYTES
from kadril.sharded.ownership.shared_memory import share_block
from kadril.transport.base import Transport

__all__ = ["CutBucket", "cut_bucket", "open_outbox", "queue_limit"]

# Size of a rank's outbox: this part of all gradients, or the largest bucket, within bounds. So a
# rank may be ahead by some layers, and its outbox is small beside the optimizer state.
SHARE_OF_GRADIENTS = 1 / 32
LEAST_BYTES = 1 << 16
MOST_BYTES = 1 << 26


class CutBucket(NamedTuple):
    """A bucket and its blocks.

    Attributes:
        bucket: what is cut.
        blocks: each has a piece of each rank's part of the bucket; posted and taken at once.
    """

    bucket: Bucket
    blocks: _native.Blocks


def cut_bucket(bucket: Bucket, box: _native.Outbox) -> CutBucket:
    """Cut a bucket into blocks that fit into slots."""
    item = bucket.dtype.itemsize
    counts = bucket.plan.counts
    me = bucket.transport.rank
    length = box.bytes_for_one // item
    begins = [sum(counts[:rank]) for rank in range(len(counts))]
    blocks = []
    for begin in range(0, max(*counts, 1), length):
        lengths = [max(0, min(length, count - begin)) for count in counts]
        parts = [
            (box.position(me, rank), (begins[rank] + begin) * item, lengths[rank] * item)
            for rank in range(len(counts))
            if rank != me and lengths[rank]
        ]
        blocks.append((parts, (bucket.begin + begin) * item, begin * item, lengths[me]))
    return CutBucket(bucket, _native.Blocks(blocks))


def slot_bytes_for(bucket_bytes: Sequence[int], size: int) -> int:
    """Return the size of a slot for buckets of these sizes."""
    wanted = max(
        int(SHARE_OF_GRADIENTS * sum(bucket_bytes)), max(bucket_bytes) * (size - 1) // size
    )
    least = max(LEAST_BYTES, _native.NUM_SLOTS * size * LINE_BYTES)
    total = min(max(wanted, least), MOST_BYTES)
    return -(-total // _native.NUM_SLOTS // LINE_BYTES) * LINE_BYTES


def queue_limit(box: _native.Outbox, size: int) -> int:
    """Return how many bytes may wait for room in the outbox: as many as it holds."""
    return _native.NUM_SLOTS * box.bytes_for_one * (size - 1)


def open_outbox(transport: Transport, bucket_bytes: Sequence[int]) -> _native.Outbox | None:
    """Make the outboxes of all ranks; collective. None where ranks share no memory.

    Args:
        transport: transport between all ranks.
        bucket_bytes: sizes of the buckets.
    """
    size = transport.size
    if size == 1 or not any(bucket_bytes):
        return None
    slot_bytes = slot_bytes_for(bucket_bytes, size)
    block = share_block(
        transport,
        _native.Outbox.num_bytes(slot_bytes, size),
        otherwise="ranks wait for each other in every reduction",
    )
    return None if block is None else _native.Outbox(block, slot_bytes, transport.rank, size)
