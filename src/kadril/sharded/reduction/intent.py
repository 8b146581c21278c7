"""Intents of ranks, and what they have: exchanged before anyone continues.

    CYCLE     I have a bucket to reduce: a rank that has none takes part with zeros
    SETTLE    I am done, and so is everyone who says so; or
    STEP      the same, and I am about to write parameters; LOAD and ADD likewise

So no rank waits for a reduction that a peer has no reason to make, and when all say STEP none is in
its backward pass any more: the parameters may be written.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kadril.errors import MismatchError
from kadril.transport.base import Transport

__all__ = ["Agreement", "Intent", "exchange_intents"]

# A record: what ranks have to agree on, and what they tell each other.
#   | intent | num_drops | digest, 4 | flags | num_posted and has_more, 8 | present | pending |
DIGEST_BYTES = 4
HEAD_BYTES = 1 + 1 + DIGEST_BYTES
COUNT_BYTES = 8
HAS_DROPPED = 1
HAS_GIVEN = 2


class Intent(enum.IntEnum):
    """Intent of a rank: what it is about to do."""

    CYCLE = 1
    SETTLE = 2
    STEP = 3
    LOAD = 4
    ADD = 5


CALLS = {
    Intent.CYCLE: "backward()",
    Intent.SETTLE: "allreduce_grads() or clip_grad_norm_()",
    Intent.STEP: "step() or update()",
    Intent.LOAD: "load()",
    Intent.ADD: "add_param_group()",
}


class Agreement(NamedTuple):
    """Intents of all ranks, taken together.

    Attributes:
        wants_cycle: whether a rank has gradients to reduce.
        disagreement: why they cannot continue together; None where they can, or where one wants a
            cycle.
        present: a bit for each parameter that a rank had a gradient of in this round.
        common: a bit for each that all ranks had one of.
        pending: a bit for each whose gradient waits to be reduced on a rank.
        droppers: ranks that have dropped gradients which others may have in their sums.
        givers: ranks that have not, and whose gradients others have in their sums.
        ends: of each rank, the number of blocks that it posts in this round; None where it may post
            more (outbox.py).
    """

    wants_cycle: bool
    disagreement: str | None
    present: int
    common: int
    pending: int
    droppers: tuple[int, ...]
    givers: tuple[int, ...]
    ends: tuple[int | None, ...]

    def check(self) -> None:
        """Raise `MismatchError` where ranks cannot continue together; on all of them."""
        if self.disagreement is not None:
            raise MismatchError(self.disagreement)


def exchange_intents(
    transport: Transport,
    intent: Intent,
    *,
    num_parameters: int,
    present: int = 0,
    pending: int = 0,
    digest: int = 0,
    num_drops: int = 0,
    has_dropped: bool = False,
    has_given: bool = False,
    num_posted: int = 0,
    has_more: bool = False,
) -> Agreement:
    """Tell all ranks what this one intends and has, and learn the same of them; collective.

    Args:
        transport: transport between all ranks.
        intent: of this rank.
        num_parameters: number of bits in `present` and `pending`.
        present: see `Agreement`.
        pending: see `Agreement`.
        digest: of what has to be the same on all ranks, 32 bits.
        num_drops: how often it has dropped reduced gradients since the last step.
        has_dropped: see `Agreement`.
        has_given: see `Agreement`.
        num_posted: blocks that this rank has posted.
        has_more: whether it has blocks to post.
    """
    num_bytes = (num_parameters + 7) // 8
    bits = (present.to_bytes(num_bytes, "little"), pending.to_bytes(num_bytes, "little"))
    head = bytes([intent, num_drops % 256]) + digest.to_bytes(DIGEST_BYTES, "little")
    flags = bytes([HAS_DROPPED * has_dropped | HAS_GIVEN * has_given])
    count = (num_posted << 1 | has_more).to_bytes(COUNT_BYTES, "little")
    records = transport.allgather_bytes(head + flags + count + bits[0] + bits[1], name="intents")
    wants_cycle = any(record[0] == Intent.CYCLE for record in records)
    are_apart = not wants_cycle and any(record[:HEAD_BYTES] != head for record in records)
    begin = HEAD_BYTES + 1 + COUNT_BYTES
    middle = begin + num_bytes
    return Agreement(
        wants_cycle,
        describe_disagreement(transport, records) if are_apart else None,
        combine(int.__or__, (record[begin:middle] for record in records)),
        combine(int.__and__, (record[begin:middle] for record in records)),
        combine(int.__or__, (record[middle:] for record in records)),
        tuple(rank for rank, record in enumerate(records) if record[HEAD_BYTES] & HAS_DROPPED),
        tuple(rank for rank, record in enumerate(records) if record[HEAD_BYTES] == HAS_GIVEN),
        tuple(end_of(record) for record in records),
    )


def end_of(record: bytes) -> int | None:
    """Return the number of the last block of a rank, None where it is not known."""
    begin = HEAD_BYTES + 1
    count = int.from_bytes(record[begin : begin + COUNT_BYTES], "little")
    return None if count & 1 or record[0] == Intent.CYCLE else count >> 1


def combine(operator: Callable[[int, int], int], records: Iterable[bytes]) -> int:
    """Combine the bits of all records."""
    return functools.reduce(operator, (int.from_bytes(record, "little") for record in records))


def describe_disagreement(transport: Transport, records: Sequence[bytes]) -> str:
    """Return why ranks cannot continue together, as text."""
    heads = [record[:HEAD_BYTES] for record in records]
    odd = next(rank for rank, head in enumerate(heads) if head != heads[0])
    rank, odd_rank = transport.world_ranks[0], transport.world_ranks[odd]
    if heads[odd][0] != heads[0][0]:
        return (
            f"rank {rank} is in {CALLS[Intent(heads[0][0])]} and rank {odd_rank} in"
            f" {CALLS[Intent(heads[odd][0])]}; make the same calls on every rank"
        )
    if heads[odd][1] != heads[0][1]:
        return (
            f"rank {rank} has dropped reduced gradients {heads[0][1]} times since the last step,"
            f" and rank {odd_rank} {heads[odd][1]} times; call zero_grad() on every rank or on none"
        )
    return (
        f"rank {odd_rank} would step with other options than rank {rank}: another learning rate or"
        " batch size, perhaps. Each rank steps its own part, so all have to use the same; run"
        " schedulers on every rank"
    )
