"""Failures of the native core as exceptions that teach."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypedDict

from kadril._native import Failure
from kadril.errors import (
    ClosedError,
    DeadlockError,
    ForkedError,
    KadrilError,
    NoRoomError,
    PeerError,
    PeerLost,
    Revoked,
    Stalled,
    StateError,
    TransportError,
    UnsupportedError,
)
from kadril.transport.call import mismatch

__all__ = ["to_exception"]


def to_exception(failure: Failure, world_ranks: Sequence[int]) -> Exception:
    """The exception for a failure in the group whose members have these world ranks."""
    reason = failure.reason
    if reason == "mismatch":
        return mismatch(failure.calls, world_ranks, failure.detail)
    if reason == "foreign":
        return retold(failure)
    if reason in ("peer_lost", "peer_left", "stalled", "revoked"):
        return peer_error(failure, world_ranks)
    if reason == "deadlock":
        return deadlock(failure)
    if reason == "no_room":
        return no_room(failure, world_ranks)
    if reason == "forked":
        return ForkedError(
            "this process was made by fork() from a rank and is not one itself; start ranks with"
            " `kadril run`, and do not use kadril in helper processes such as DataLoader workers"
        )
    if reason == "closed":
        return ClosedError(failure.detail or "this group was closed; it cannot be used any more")
    if reason == "unsupported":
        return UnsupportedError(f"{failure.detail}: the op makes no sense for this dtype")
    if reason == "invalid":
        return ValueError(failure.detail)
    # Never the root of the tree itself: it stands for a failure that the program has made up.
    return StateError(f"{reason}: {failure.detail}")


def retold(failure: Failure) -> Exception:
    """Return an error of another transport as one about the request that it ended."""
    cause = failure.cause
    if not isinstance(cause, PeerError):
        return cause or TransportError(failure.detail)
    if failure.detail.startswith("Traceback "):
        return copy.copy(cause)  # it ended the engine, before there was this request
    error = copy.copy(cause)
    # Not what the engine calls below: its caller has never heard of that.
    error.args = (f"{failure.detail}: {cause.event or cause}",)
    error.operation = failure.detail.partition("(")[0]
    error.name = name_in(failure.detail)
    error.__cause__ = cause
    return error


class Fields(TypedDict):
    """The fields of every `PeerError`."""

    rank: int
    operation: str
    name: str
    elapsed: float


def peer_error(failure: Failure, world_ranks: Sequence[int]) -> KadrilError:
    """The exception for a peer that is gone, late, or gave the group up."""
    rank = world_ranks[failure.member]
    where = f"in {failure.detail} after {failure.elapsed:.3f} s"
    fields = Fields(
        rank=rank,
        operation=failure.detail.partition("(")[0],
        name=name_in(failure.detail),
        elapsed=failure.elapsed,
    )
    if failure.reason == "peer_lost":
        lost = PeerLost(
            f"rank {rank} is dead, noticed {where}. This group cannot go on. The launcher's summary"
            " says how that rank ended; look at its last lines first.",
            **fields,
        )
        lost.is_certain = True
        return lost
    if failure.reason == "peer_left":
        return PeerLost(
            f"rank {rank} has left the group, noticed {where}. Its program ended, or it called"
            " close() or shutdown(), while others still had collectives to do: let every rank make"
            " the same calls, and leave after the last.",
            **fields,
        )
    if failure.reason == "revoked":
        return Revoked(
            f"rank {rank} gave this group up, noticed {where}. It was interrupted, or called"
            " revoke() or close() during a collective; its own output says why.",
            **fields,
        )
    return stalled(failure, world_ranks, where, fields)


def stalled(failure: Failure, world_ranks: Sequence[int], where: str, fields: Fields) -> Stalled:
    """The exception for a peer that lives but did not come."""
    state = "stopped" if failure.stopped else "late"
    others = [world_ranks[member] for member in failure.late if member != failure.member]
    also = f" Also waited for: {', '.join(map(str, others))}." if others else ""
    remedy = (
        "It is held by SIGSTOP or a debugger; `kill -CONT` lets it go on."
        if failure.stopped
        else "It is alive: it does something else, or skipped this call; `py-spy dump` shows what."
    )
    history = ""
    if failure.num_common:
        history = (
            f" It is call {failure.num_common + 1} of this group; the last one that all ranks have"
            f" made is call {failure.num_common}, {failure.last_common}."
        )
    history += "".join(f" Rank {fields['rank']} waits in {wait}." for wait in failure.calls)
    return Stalled(
        f"rank {fields['rank']} is {state}: this rank gave up {where}.{also}{history} {remedy}"
        " KADRIL_PATIENCE sets how long to wait.",
        state=state,
        num_common=failure.num_common or None,
        last_common=failure.last_common,
        waits=failure.calls,
        **fields,
    )


def deadlock(failure: Failure) -> DeadlockError:
    """The exception for ranks that wait for each other in different groups."""
    lines = "".join(f"\n    {line}" for line in failure.calls)
    return DeadlockError(
        f"deadlock, found in {failure.detail} after {failure.elapsed:.3f} s: these ranks wait for"
        f" each other, and no other thread of theirs could end it:{lines}\nLet all ranks make their"
        " calls of different groups in the same order.",
        failure.calls,
        operation=failure.detail.partition("(")[0],
        elapsed=failure.elapsed,
    )


def no_room(failure: Failure, world_ranks: Sequence[int]) -> NoRoomError:
    """The exception for memory that could not be allocated."""
    who = f"rank {world_ranks[failure.member]}: " if failure.member >= 0 else ""
    if failure.detail.startswith("shm_open"):
        return NoRoomError(
            f"{who}no file to share can be made in /dev/shm: {failure.detail}. Mount a tmpfs there,"
            " or set KADRIL_SHARED_BACKING=memfd, which needs none."
        )
    have = f", {failure.available:,} can be had" if failure.available >= 0 else ""
    return NoRoomError(
        f"{who}no room to share {failure.needed:,} bytes{have}: {failure.detail}."
        " Share less, or give the machine or container more memory.",
        needed=failure.needed,
        available=failure.available if failure.available >= 0 else None,
    )


def name_in(text: str) -> str:
    """The name within the text of a call."""
    return text.partition("name='")[2].removesuffix("')")
