"""Gradients as a trainer sees them, whoever reduces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.reduction.intent import Intent

__all__ = ["Gradients"]


class Gradients(Protocol):
    """Gives the pieces of this rank their gradients."""

    @property
    def agreed(self) -> int:
        """A bit for each parameter that got a gradient on any rank; known after `settle`."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether `hand_over` would give the pieces something that they do not have."""
        ...

    @property
    def gives_away(self) -> bool:
        """Whether gradients go to their owners during the backward pass."""
        ...

    @property
    def has_given_away(self) -> bool:
        """Whether gradients of this round are with their owners, and not in `.grad`."""
        ...

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Take in the parameters of these buckets, between rounds; collective."""
        ...

    def settle(self, intent: Intent, digest: int = 0) -> None:
        """Bring all gradients where they belong, and agree on what came anywhere; collective.

        Args:
            intent: SETTLE, STEP, LOAD or ADD.
            digest: of what has to be the same on all ranks.

        Raises:
            MismatchError: ranks intend different things, or have other digests.
        """
        ...

    def hand_over(self) -> None:
        """Give the pieces of this rank their gradients."""
        ...

    def begin_round(self) -> None:
        """Forget what came; gradients that the parameters have stay."""
        ...

    def drop_round(self) -> None:
        """Forget what came in the middle of a round; peers get what they count on."""
        ...

    def detach(self) -> None:
        """Stop watching the parameters."""
        ...
