"""Carriers bring gradients to their owners; one is chosen, by what the transport can.

| carrier | where | a rank waits for the others |
|---|---|---|
| outbox_carrier.py | ranks share memory, stage 2 | where parameters are about to be written |
| collective_carrier.py | everywhere else | in every reduction, in a thread of its own if it pays |
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.reduction.intent import Agreement

__all__ = ["Ask", "Carrier", "Hold"]


class Hold(enum.Enum):
    """References that the sender of gradients keeps to them, until it sends the next ones."""

    NOTHING = enum.auto()
    GIVEN = enum.auto()  # a reference that it does not use any more
    LENT = enum.auto()  # one through which the gradients may be read


class Ask(Protocol):
    """Exchanges intents with all ranks; collective."""

    def __call__(self, *, num_posted: int = 0, has_more: bool = False) -> Agreement:
        """Tell all ranks how many blocks this one has posted, and whether it has more."""
        ...


class Carrier(Protocol):
    """Adds the gradients of all ranks up, each bucket on the ranks that own its parts.

    Buckets are sent in cycles: in the order that was set, alike on all ranks. Sums are kept in
    `Bucket.gradients`, and those of several cycles add up.
    """

    def set_order(self, buckets: Sequence[Bucket]) -> None:
        """Set the order of a cycle, between cycles; alike on all ranks."""
        ...

    def begin_cycle(self) -> None:
        """Let the other ranks know that a cycle begins, where they have to take part."""
        ...

    def send(
        self, bucket: Bucket, gradients: list[torch.Tensor | None], hold: Hold = Hold.NOTHING
    ) -> None:
        """Send the next bucket of the cycle.

        Args:
            bucket: the next one of the cycle.
            gradients: of its parameters, None where there is none. The carrier owns them now.
            hold: what the caller keeps of them until it sends the next ones.
        """
        ...

    def reduce(self, bucket: Bucket, gradients: list[torch.Tensor | None]) -> None:
        """Reduce a bucket outside of cycles; collective."""
        ...

    def wait(self) -> None:
        """Wait for what is reduced in the background."""
        ...

    def drain(self, ask: Ask, finish_cycle: Callable[[], None]) -> Agreement:
        """Bring everything that was sent to its owners, on all ranks; collective.

        Args:
            ask: tells all ranks what this one intends.
            finish_cycle: sends what this rank has not sent of a cycle that others have begun.

        Returns:
            What ranks have agreed on when none has anything more to send.

        Raises:
            MismatchError: ranks intend different things.
        """
        ...

    def drop(
        self, rest: Sequence[Bucket], forget_sums: Callable[[], None], *, is_held: bool
    ) -> None:
        """Forget what was sent.

        Local where gradients travel by outboxes or in a thread. Otherwise the rest of a cycle is
        reduced here, with all ranks: this one waits until they have come to it.

        Args:
            rest: buckets of the cycle that were not sent; peers count on them, and get nothing.
            forget_sums: forgets what was added up; called when nothing that was sent before it is
                added any more.
            is_held: whether nothing is to be added up from now on, until `restart`.
        """
        ...

    def restart(self) -> None:
        """Add up again what is sent from now on; all ranks know of the drop."""
        ...
