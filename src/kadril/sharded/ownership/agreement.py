"""Ranks make sure that they speak of the same things before they share memory for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kadril.errors import KadrilError, MismatchError
from kadril.transport.base import Transport

__all__ = ["allgather_json", "check_same", "raise_together"]


def allgather_json(transport: Transport, value: Any, name: str) -> list[Any]:
    """What each rank gave; collective. Anything that JSON can hold."""
    data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
    rows = transport.allgather_bytes(len(data).to_bytes(8, "little"), name=f"{name}.length")
    counts = [int.from_bytes(row, "little") for row in rows]
    everything = np.empty(sum(counts), dtype=np.uint8)
    transport.allgatherv(data, everything, counts, name=name)
    ends = np.cumsum(counts)
    return [
        json.loads(everything[end - count : end].tobytes())
        for end, count in zip(ends, counts, strict=True)
    ]


def check_same(transport: Transport, operation: str, lines: Sequence[str]) -> None:
    """Raise `MismatchError` on every rank where they do not give the same lines; collective.

    Raises:
        MismatchError: it has the first line that differs, on both sides.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    digests = transport.allgather_bytes(digest, name=f"{operation}.digest")
    if all(each == digests[0] for each in digests):
        return
    # Only now are the lines worth their bytes. Every rank sees the same digests, so all come here.
    everyone = allgather_json(transport, list(lines), f"{operation}.lines")
    odd = next(rank for rank, other in enumerate(everyone) if other != everyone[0])
    rank, odd_rank = transport.world_ranks[0], transport.world_ranks[odd]
    raise MismatchError(
        f"{operation}: rank {odd_rank} does not have what rank {rank} has."
        f" {describe_difference(rank, everyone[0], odd_rank, everyone[odd])}."
        " Build the same model and optimizer on every rank, in the same order",
        calls={
            transport.world_ranks[place]: f"{len(other)} entries"
            for place, other in enumerate(everyone)
        },
    )


def describe_difference(
    rank: int, lines: Sequence[str], other_rank: int, other_lines: Sequence[str]
) -> str:
    """The first place where two lists of lines part."""
    for line, other in zip(lines, other_lines, strict=False):
        if line != other:
            return f"Rank {rank} has {line}; rank {other_rank} has {other}"
    longer, extra = (
        (rank, lines[len(other_lines) :])
        if len(lines) > len(other_lines)
        else (other_rank, other_lines[len(lines) :])
    )
    return f"Rank {longer} has {len(extra)} more, the first is {extra[0]}"


def raise_together(
    transport: Transport, operation: str, error: Exception | None, kind: type[KadrilError]
) -> None:
    """Where a rank has failed, raise on all of them, so that nobody goes on alone; collective.

    The rank itself raises its own error, the others one of `kind` that says whose it is.
    """
    texts = allgather_json(transport, None if error is None else str(error), operation)
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise kind(f"{operation}: rank {transport.world_ranks[rank]} failed: {text}")
