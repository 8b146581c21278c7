"""Pairing: which workers of one partition belong to which of another, by the shapes alone.

Shapes are compared from the right, as NumPy does; an axis of size 1 stands for all:

    source  1 x 2         destination  3 x 2

    (0, 0) -> (0, 0), (1, 0), (2, 0)         one set per worker of the source: it sends to the
    (0, 1) -> (0, 1), (1, 1), (2, 1)         others, or gets their sum
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["index_of", "pair", "rank_at"]


def index_of(rank: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the position of a worker in a shape; the last axis runs fastest."""
    index = []
    for length in reversed(shape):
        rank, position = divmod(rank, length)
        index.append(position)
    return tuple(reversed(index))


def rank_at(index: Sequence[int], shape: Sequence[int]) -> int:
    """The worker at a position."""
    rank = 0
    for position, length in zip(index, shape, strict=True):
        rank = rank * length + position
    return rank


def pair(
    source: Sequence[int],
    destination: Sequence[int],
    transpose_source: bool = False,
    transpose_destination: bool = False,
) -> list[tuple[int, list[int]]]:
    """Return, for each worker of the source, those of the destination that it stands for.

    Args:
        source: shape of the smaller partition.
        destination: shape of the larger partition.
        transpose_source: whether its axes are taken in reverse order.
        transpose_destination: the same, for the destination.

    Raises:
        ValueError: the shapes do not match.
    """
    small = tuple(reversed(source)) if transpose_source else tuple(source)
    large = tuple(reversed(destination)) if transpose_destination else tuple(destination)
    padded = (1,) * (len(large) - len(small)) + small
    fits = len(small) <= len(large) and all(
        length in (1, other) for length, other in zip(padded, large, strict=True)
    )
    if not fits:
        raise ValueError(
            f"a partition of shape {text(small)} cannot stand for one of shape {text(large)}: from"
            " the right, each axis must have size 1 or the size of the other"
        )
    pairs = []
    for rank in range(math.prod(source)):
        index = index_of(rank, source)
        index = tuple(reversed(index)) if transpose_source else index
        index = (0,) * (len(large) - len(small)) + index
        ranges = [
            [position] if length == other else range(other)
            for position, length, other in zip(index, padded, large, strict=True)
        ]
        workers = [
            rank_at(tuple(reversed(place)) if transpose_destination else place, destination)
            for place in itertools.product(*ranges)
        ]
        pairs.append((rank, workers))
    return pairs


def text(shape: Sequence[int]) -> str:
    """Return a shape as text, such as "2 x 3"."""
    return " x ".join(str(length) for length in shape)
