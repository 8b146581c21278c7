"""Errors about peers, as network transports raise them: all of them sound the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from kadril.errors import PeerError, PeerLost, Revoked, Stalled, TransportError, name_ranks
from kadril.transport.call import Call

__all__ = ["FailedCall", "name_peers", "reason_given", "revoked_text"]

GAVE_UP = " gave the group up: "
NO_REASON = "it gave no reason"
WHAT_TO_DO = ". Make a group of the ranks that go on."

Error = TypeVar("Error", bound=PeerError)


class FailedCall(NamedTuple):
    """A call that cannot be completed. Its methods make the error, from what is known of the cause.

    Attributes:
        call: what this rank called.
        elapsed: seconds since the call began.
        words: what the engine below said, if anything.
        hostnames: name of the host of each world rank, where there are several.
        number: of the call among those of the group, from 1 on; 0 where it is not known.
    """

    call: Call
    elapsed: float
    words: str = ""
    hostnames: Sequence[str] = ()
    number: int = 0

    def lost(self, candidates: Sequence[int]) -> PeerLost:
        """A peer is dead; where nobody knows which, one of the candidates."""
        who = f"{'' if len(candidates) == 1 else 'one of '}{self._name(candidates)}"
        return self._error(
            PeerLost,
            candidates[0] if len(candidates) == 1 else None,
            f"{who} is gone{self._quoted()}. See what it said last; the ranks that are left can"
            " make a new group.",
        )

    def closed(self, rank: int) -> PeerLost:
        """A peer has closed the group."""
        return self._error(
            PeerLost,
            rank,
            f"{self._name([rank])} has left the group{self._quoted()}: its program ended, or it"
            " called close() or shutdown(). Let every rank make its last call before any of them"
            " leaves.",
        )

    def abandoned(self, rank: int, reason: str) -> PeerLost:
        """A peer has given up, maybe on this rank."""
        return self._error(
            PeerLost, rank, f"{self._name([rank])} has given the group up, because: {reason}"
        )

    def late(self, ranks: Sequence[int], patience: float) -> Stalled:
        """Patience ran out on peers that live, as far as is known."""
        error = self._error(
            Stalled,
            ranks[0] if ranks else None,
            f"{self._name(ranks)} did not come within {patience:g} s{self._quoted()}. See what they"
            " do instead; raise KADRIL_PATIENCE if that takes its time by right.",
        )
        if self.number:  # which means nothing to those whose request has led to this call
            error.args = (f"{error} It is call {self.number} of this group here.",)
        return error

    def revoked(self, rank: int, reason: str) -> Revoked:
        """A peer gave the group up on purpose."""
        return self._error(Revoked, rank, revoked_text(rank, reason))

    def unknown(self, engine: str) -> TransportError:
        """The engine failed and did not say why in a way that we know."""
        return TransportError(
            f"{self.call.text}: {engine} failed{self._quoted()}. The group cannot go on; the ranks"
            " can make a new one."
        )

    def _error(self, kind: type[Error], rank: int | None, event: str) -> Error:
        return kind(
            f"{self.call.text}: {event}",
            rank=rank,
            operation=self.call.operation,
            name=self.call.name,
            elapsed=self.elapsed,
            event=event,
            host=host_of(rank, self.hostnames),
        )

    def _name(self, ranks: Sequence[int]) -> str:
        return name_peers(ranks, self.hostnames)

    def _quoted(self) -> str:
        return f" ({self.words})" if self.words else ""


def host_of(rank: int | None, hostnames: Sequence[str]) -> str:
    """Name of the host of a world rank; empty where it is not known, or there is only one."""
    return hostnames[rank] if rank is not None and rank < len(hostnames) else ""


def name_peers(ranks: Sequence[int], hostnames: Sequence[str]) -> str:
    """Return world ranks with their hosts: "rank 3 on node7", "ranks 2, 3 on node6, node7"."""
    hosts = dict.fromkeys(filter(None, (host_of(rank, hostnames) for rank in ranks)))
    return name_ranks(ranks) + (f" on {', '.join(list(hosts)[:16])}" if hosts else "")


def revoked_text(world_rank: int, reason: str) -> str:
    """Return the text that says why a group was given up."""
    return f"rank {world_rank}{GAVE_UP}{reason or NO_REASON}{WHAT_TO_DO}"


def reason_given(event: str) -> str:
    """The reason within `revoked_text`; nothing where there is none."""
    reason = event.partition(GAVE_UP)[2].removesuffix(WHAT_TO_DO)
    return "" if reason == NO_REASON else reason
