"""Agreement: ranks find out together whether they can continue, and raise together where not.

A rank that raised alone would leave the others waiting in the next collective.

    rank 0   done                    --+           save: rank 1 failed: disk full
    rank 1   OSError("disk full")    --+-- so -->  OSError("disk full")
    rank 2   done                    --+           save: rank 1 failed: disk full

All functions are collective. They work over a transport, or over anything else that gathers bytes
(a hub before there is a transport, a process set of the engine): see `Peers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kadril.errors import MismatchError
from kadril.transport.base import Transport

__all__ = ["Peers", "allgather_blobs", "allgather_json", "check_same", "raise_on_all"]

SAME_MODEL = "Build the same model and optimizer on every rank, in the same order"


class Peers(NamedTuple):
    """Ranks that agree on something over anything but a transport.

    Attributes:
        ranks: the number of each, as errors name it, in the order of `gather`.
        gather: given bytes of any length and the name of the call, returns those of all ranks.
        noun: what errors call a rank.
    """

    ranks: Sequence[int]
    gather: Callable[[bytes, str], list[bytes]]
    noun: str = "rank"


def raise_on_all(
    group: Transport | Peers,
    operation: str,
    error: Exception | None,
    kind: Callable[[str], Exception],
) -> None:
    """Raise on all ranks where one of them has failed; collective.

    Where none has, a transport moves eight bytes per rank.

    Args:
        group: the ranks that take part.
        operation: what they are doing; the beginning of the message.
        error: what went wrong on this rank, if anything.
        kind: makes the error of the ranks that have none of their own.

    Raises:
        Exception: `error` itself where there is one; one of `kind` on the other ranks, which names
            the first rank that failed with its reason, and the others that did.
    """
    peers = peers_of(group)
    blob = b"" if error is None else json.dumps(f"{error}").encode()
    reports = peers.gather(blob, operation)
    if error is not None:
        raise error
    failed = [place for place, report in enumerate(reports) if report]
    if not failed:
        return
    first, *more = (peers.ranks[place] for place in failed)
    also = f" (so did {peers.noun}s {', '.join(map(str, more))})" if more else ""
    reason = json.loads(reports[failed[0]])
    raise kind(f"{operation}: {peers.noun} {first} failed: {reason}{also}")


def check_same(
    group: Transport | Peers, operation: str, lines: Sequence[str], *, advice: str = SAME_MODEL
) -> None:
    """Raise on all ranks where they do not give the same lines; collective.

    Args:
        group: the ranks that take part.
        operation: what they are doing; the beginning of the message.
        lines: what this rank has, one item per line.
        advice: what to do about a difference; the end of the message.

    Raises:
        MismatchError: on every rank; it names the first line that differs, on both sides.
    """
    peers = peers_of(group)
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    digests = peers.gather(digest, f"{operation}.digest")
    if all(other == digests[0] for other in digests):
        return
    # Only now are the lines worth their bytes. Every rank sees the same digests, so all come here.
    blobs = peers.gather(json.dumps(list(lines)).encode(), f"{operation}.lines")
    everyone: list[list[str]] = [json.loads(blob) for blob in blobs]
    odd = next(place for place, other in enumerate(everyone) if other != everyone[0])
    rank, odd_rank = peers.ranks[0], peers.ranks[odd]
    raise MismatchError(
        f"{operation}: {peers.noun} {odd_rank} does not have what {peers.noun} {rank} has."
        f" {describe_difference(rank, everyone[0], odd_rank, everyone[odd])}. {advice}",
        calls={peers.ranks[place]: f"{len(other)} entries" for place, other in enumerate(everyone)},
    )


def describe_difference(
    rank: int, lines: Sequence[str], other_rank: int, other_lines: Sequence[str]
) -> str:
    """Return a sentence about the first place where two lists of lines differ."""
    for place, (line, other) in enumerate(zip(lines, other_lines, strict=False)):
        if line != other:
            return f"Entry {place} is {line} on rank {rank} and {other} on rank {other_rank}"
    longer, extra = (
        (rank, lines[len(other_lines) :])
        if len(lines) > len(other_lines)
        else (other_rank, other_lines[len(lines) :])
    )
    return f"Rank {longer} has {len(extra)} more, the first is {extra[0]}"


def allgather_json(transport: Transport, value: Any, name: str) -> list[Any]:
    """Return what each rank gave: anything that JSON can hold; collective."""
    blobs = allgather_blobs(transport, json.dumps(value).encode(), name)
    return [json.loads(blob) for blob in blobs]


def allgather_blobs(transport: Transport, blob: bytes, name: str) -> list[bytes]:
    """Return the bytes of each rank, of any length; collective.

    Where you know that all ranks give as many, `Transport.allgather_bytes` takes one step less.
    """
    length = len(blob).to_bytes(8, "little")
    rows = transport.allgather_bytes(length, name=f"{name}.length")
    counts = [int.from_bytes(row, "little") for row in rows]
    if not any(counts):
        return [b""] * transport.size
    everything = np.empty(sum(counts), dtype=np.uint8)
    mine = np.frombuffer(bytearray(blob), dtype=np.uint8)  # arrays that are sent are writable
    transport.allgatherv(mine, everything, counts, name=name)
    ends = np.cumsum(counts)
    return [
        everything[end - count : end].tobytes() for end, count in zip(ends, counts, strict=True)
    ]


def peers_of(group: Transport | Peers) -> Peers:
    """The ranks of a group, and how they gather bytes."""
    if isinstance(group, Peers):
        return group
    return Peers(group.world_ranks, lambda blob, name: allgather_blobs(group, blob, name))
