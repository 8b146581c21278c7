"""Rows: what lies along the first dim of an array, and what ranks tell each other of theirs."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from kadril.collectives.memory import AnyArray
from kadril.errors import MismatchError
from kadril.transport.buffer import Array
from kadril.world import World

__all__ = ["Rows", "agree_on_rows", "as_rows", "num_rows", "row_size"]

MAX_DIMS = 16
SHAPE = struct.Struct(f"<{1 + MAX_DIMS}q")


class Rows(NamedTuple):
    """Rows of one rank: how many there are, their shape, and how many of them go to each rank."""

    num_rows: int
    shape: tuple[int, ...]
    sends: tuple[int, ...]


def as_rows(x: AnyArray) -> AnyArray:
    """A number as one row, anything else as it is."""
    return x if x.shape else cast("AnyArray", x.reshape(1))


def num_rows(x: Array, operation: str) -> int:
    """The size of the first dim.

    Raises:
        ValueError: there is none.
    """
    if not x.shape:
        raise ValueError(f"{operation}: an array of no dims has no rows to share out")
    return int(x.shape[0])


def row_size(x: Array) -> int:
    """Number of elements of a row."""
    return math.prod(int(length) for length in x.shape[1:])


def agree_on_rows(
    x: Array, sends: Sequence[int], world: World, operation: str, name: str
) -> list[Rows]:
    """Tell all ranks what this one has, and hear it of them; collective.

    Raises:
        ValueError: an array has too many dims; on all ranks.
        MismatchError: rows have different shapes; on all ranks.
    """
    # Nothing is refused here: what one rank finds, all shall find.
    shape = [int(length) for length in x.shape[:MAX_DIMS]]
    mine = SHAPE.pack(len(x.shape), *shape, *[0] * (MAX_DIMS - len(shape)))
    mine += struct.pack(f"<{len(sends)}q", *sends)
    told = world.transport.allgather_bytes(mine, name=f"{operation} {name}".strip())
    for rank, each in enumerate(told):
        num_dims: int = SHAPE.unpack_from(each)[0]
        if num_dims > MAX_DIMS:
            raise ValueError(
                f"{operation}: {num_dims} dims on rank {rank}; {MAX_DIMS} are the most. Flatten"
                " dims after the first on every rank"
            )
    rows = [as_told(each, len(sends)) for each in told]
    if len({each.shape for each in rows}) > 1:
        shapes = {rank: str((each.num_rows, *each.shape)) for rank, each in enumerate(rows)}
        listed = ", ".join(f"{shape} on rank {rank}" for rank, shape in shapes.items())
        raise MismatchError(
            f"{operation}: arrays must have the same shape but for the first dim; got {listed}",
            shapes,
        )
    return rows


def as_told(data: bytes, num_sends: int) -> Rows:
    """Read the rows of one rank from the bytes that it sent."""
    num_dims, *lengths = SHAPE.unpack_from(data)
    num, *rest = lengths[:num_dims]
    sends: tuple[Any, ...] = struct.unpack_from(f"<{num_sends}q", data, SHAPE.size)
    return Rows(num, tuple(rest), sends)
