"""Ranks that are about to move many named tensors first make sure that they speak of the same ones.

Without this a rank with another model would wait for a name that nobody else ever submits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from kadril.errors import MismatchError
from kadril.torch.objects import allgather_object
from kadril.torch.ops import allgather
from kadril.torch.process_sets import ProcessSet, global_process_set

__all__ = ["check_same"]


def check_same(
    operation: str, lines: Sequence[str], process_set: ProcessSet = global_process_set
) -> None:
    """Raise where ranks do not give the same lines; collective.

    Args:
        operation: who asks; the start of the message.
        lines: what this rank has, one item per line.
        process_set: the ranks that take part.

    Raises:
        MismatchError: on every rank; it names the first line that differs, on both sides.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).view(1, -1)
    everyone = allgather(mine, name=f"{operation}.digest", process_set=process_set)
    if bool((everyone == everyone[0]).all()):
        return
    # Only now are the lines worth their bytes. Every rank sees the same digests, so all come here.
    gathered = allgather_object(list(lines), name=f"{operation}.lines", process_set=process_set)
    ranks = process_set.ranks or list(range(len(gathered)))
    odd = next(place for place, other in enumerate(gathered) if other != gathered[0])
    raise MismatchError(
        f"{operation}: rank {ranks[odd]} does not have what rank {ranks[0]} has."
        f" {describe_difference(ranks[0], gathered[0], ranks[odd], gathered[odd])}."
        " Build the same model and optimizer on every rank, in the same order",
        calls={ranks[place]: f"{len(other)} entries" for place, other in enumerate(gathered)},
    )


def describe_difference(
    rank: int, lines: Sequence[str], other_rank: int, other_lines: Sequence[str]
) -> str:
    """The first place where two lists of lines part."""
    for place, (line, other) in enumerate(zip(lines, other_lines, strict=False)):
        if line != other:
            return f"Entry {place} is {line} on rank {rank} and {other} on rank {other_rank}"
    longer, extra = (
        (rank, lines[len(other_lines) :])
        if len(lines) > len(other_lines)
        else (other_rank, other_lines[len(lines) :])
    )
    return f"Rank {longer} has {len(extra)} more, the first is {extra[0]}"
