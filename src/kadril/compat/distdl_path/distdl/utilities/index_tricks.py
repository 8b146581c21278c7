"""Ranks of positions in a Cartesian shape."""

from __future__ import annotations

from collections.abc import Sequence

from kadril.partition.pairing import rank_at

__all__ = ["cartesian_index_c", "cartesian_index_f"]


def cartesian_index_c(shape: Sequence[int], index: Sequence[int]) -> int:
    """Return the rank of a position where the last axis runs fastest."""
    return int(rank_at(list(index), list(shape)))


def cartesian_index_f(shape: Sequence[int], index: Sequence[int]) -> int:
    """Return the rank of a position where the first axis runs fastest."""
    return int(rank_at(list(index)[::-1], list(shape)[::-1]))
