"""Gradients by collectives: all ranks reduce a bucket at the same time.

Ranks meet before each cycle, since one that makes no further pass has no reason to come: it takes
part with zeros. Over a network a thread does so while the backward pass continues.

    rank 0   pass      | bucket 0 ready | bucket 1 ready | ...
             thread    | begin cycle    | reduce 0       | reduce 1
    rank 1   settle    | begin cycle    | zeros 0        | zeros 1
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.gradient_memory import Scale, Scratch
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.carrier import Ask, Hold
from kadril.sharded.reduction.communication_thread import CommunicationThread
from kadril.sharded.reduction.intent import Agreement, Intent, exchange_intents

__all__ = ["CollectiveCarrier"]


class CollectiveCarrier:
    """Reduces each bucket by a reduce-scatter; a `Carrier`.

    Args:
        shards: parameters and their buckets.
        scale: of gradients, before and after they are added up.
        thread: reduces in the background; None to reduce in the calling thread.
    """

    def __init__(self, shards: Shards, scale: Scale, thread: CommunicationThread | None) -> None:
        self._shards = shards
        self._scale = scale
        self._thread = thread
        self._scratch = Scratch(shards.transport)
        self._is_held = False  # this rank does not need sums

    def set_order(self, buckets: Sequence[Bucket]) -> None:
        """Do nothing: a bucket is reduced when it is sent."""

    def begin_cycle(self) -> None:
        """Call the other ranks to a cycle."""
        num_parameters = len(self._shards.parameters.tensors)
        self._run(
            lambda: exchange_intents(
                self._shards.transport, Intent.CYCLE, num_parameters=num_parameters
            )
        )

    def send(
        self, bucket: Bucket, gradients: list[torch.Tensor | None], hold: Hold = Hold.NOTHING
    ) -> None:
        """Reduce a bucket with all ranks, or have that done in the background."""
        self.reduce(bucket, gradients)

    def reduce(self, bucket: Bucket, gradients: list[torch.Tensor | None]) -> None:
        """Reduce a bucket outside of cycles in the same way."""
        self._run(functools.partial(self._reduce, bucket, gradients, keeps=not self._is_held))

    def wait(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.wait()

    def drain(self, ask: Ask, finish_cycle: Callable[[], None]) -> Agreement:
        """Take part in the cycles of others until none has gradients to reduce."""
        self.wait()
        while True:
            agreement = ask()
            if not agreement.wants_cycle:
                agreement.check()
                return agreement
            finish_cycle()
            self.wait()

    def drop(
        self, rest: Sequence[Bucket], forget_sums: Callable[[], None], *, is_held: bool
    ) -> None:
        """Reduce the rest of a cycle without gradients, then forget the sums."""
        for bucket in rest:
            self.send(bucket, bucket.nothing)
        self._is_held |= is_held
        self._run(forget_sums)

    def restart(self) -> None:
        """Keep sums again."""
        self._is_held = False

    def _run(self, task: Callable[[], object]) -> None:
        """Run a task after those before it, now or in the background."""
        if self._thread is None:
            task()
        else:
            self._thread.submit(task)

    def _reduce(self, bucket: Bucket, gradients: list[torch.Tensor | None], *, keeps: bool) -> None:
        with torch.no_grad():
            bucket.reduce(gradients, self._scale, self._scratch, keeps=keeps)
