"""Sums of the blocks that all ranks have posted; each rank adds up its own part.

Blocks are added in the order of the ranks, and those of several backward passes in the order of the
passes: the result does not depend on who comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril import _native
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.gradient_memory import Scale
from kadril.sharded.reduction.outbox import CutBucket
from kadril.sharded.reduction.outgoing import Outgoing
from kadril.sharded.reduction.recycled_memory import RecycledMemory
from kadril.transport.tensor import TORCH_DTYPES

__all__ = ["BucketSums"]


class BucketSums:
    """Adds up the blocks of one bucket after the other.

    Args:
        box: where the blocks lie.
        scale: of gradients, before and after they are added up.
    """

    def __init__(self, box: _native.Outbox, scale: Scale) -> None:
        self._box = box
        self._scale = scale
        self._recycled = RecycledMemory()
        self._sum: torch.Tensor | None = None  # of the bucket that is begun
        self._is_first = True  # of the bucket in this round: the sum is the bucket's own memory

    def add(
        self, cut: CutBucket, places: range, own: Outgoing | None, posted: Sequence[int]
    ) -> None:
        """Add up the next blocks, which are these of a bucket.

        Args:
            cut: the bucket.
            places: of the blocks in it.
            own: this rank's gradients, if it has posted some.
            posted: number of blocks that count of each rank.
        """
        if places.start == 0:
            self._begin(cut.bucket, own)
        total = self._sum
        assert total is not None  # noqa: S101 - begun with the first block
        self._box.add_up(
            cut.blocks,
            first=places.start,
            count=len(places),
            own=0 if own is None else own.address,
            result=total.data_ptr(),
            posted=posted,
            dtype=TORCH_DTYPES[total.dtype].code,
            before=self._scale.before,
            after=self._scale.after,
        )
        if places.stop == len(cut.blocks):
            self._end(cut.bucket)

    def recycle(self, outgoing: Outgoing) -> None:
        """Use the memory of gradients for further sums, once others have their parts."""
        if outgoing.flat is not None and outgoing.has_sum and outgoing.is_posted:
            bucket = outgoing.cut.bucket
            self._recycled.give(outgoing.flat[: bucket.begin])
            self._recycled.give(outgoing.flat[bucket.begin + bucket.count :])

    def forget(self) -> None:
        """Forget the bucket that is begun."""
        self._sum = None
        self._recycled.clear()

    def release(self) -> None:
        """Free memory that was kept for further sums."""
        self._recycled.clear()

    def _begin(self, bucket: Bucket, own: Outgoing | None) -> None:
        """Sum the bucket up where its gradients are kept, if there are none of this round.

        That is in the memory of a gradient where nobody else sees it.
        """
        self._is_first = not bucket.is_filled
        if self._is_first and bucket.count and not bucket.has_gradients:
            memory = self._recycled.take(bucket.count, bucket.dtype)
            if memory is None and own is not None and own.is_private:
                memory = own.own_part
                own.has_sum = memory is not None
                self.recycle(own)
            if memory is not None:
                bucket.put_gradients(memory)
        self._sum = bucket.gradients if self._is_first else torch.empty_like(bucket.gradients)

    def _end(self, bucket: Bucket) -> None:
        if not self._is_first and self._sum is not None:
            bucket.gradients.add_(self._sum)
        self._sum = None
        bucket.note_sum()
