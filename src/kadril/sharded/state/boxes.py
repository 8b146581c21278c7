"""Ranges of a tensor's memory as boxes: what torch.distributed.checkpoint can store and look up.

    | . . . a a |      elements [3, 13) of a 4 x 5 tensor are three boxes:
    | b b b b b |      a   the rest of the row in which the range begins
    | c c c . . |      b   whole rows
    | . . . . . |      c   the beginning of the row in which it ends

With n dims there are at most 2 n - 1 of them. Each lies in one piece of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Box", "boxes_of"]


class Box(NamedTuple):
    """A part of a tensor with one range in each dim.

    Attributes:
        offsets: index of the first element in each dim.
        sizes: length in each dim.
        begin: place of the first element in the range that the box was cut from.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    begin: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


def boxes_of(begin: int, end: int, shape: Sequence[int], dims: Sequence[int]) -> list[Box]:
    """Cut elements [begin, end) of a tensor into boxes; one without elements where there are none.

    Args:
        begin: first element, in the order of memory.
        end: one past the last element.
        shape: shape of the tensor.
        dims: dims of the tensor in the order of memory, the slowest first.
    """
    if begin == end:
        return [Box((0,) * len(shape), (0,) * len(shape), 0)]
    places = [list(dims).index(dim) for dim in range(len(shape))]
    return [
        Box(
            tuple(offsets[place] for place in places),
            tuple(sizes[place] for place in places),
            first - begin,
        )
        for offsets, sizes, first in walk(begin, end, [shape[dim] for dim in dims])
    ]


def walk(
    begin: int, end: int, lengths: Sequence[int]
) -> Iterator[tuple[list[int], list[int], int]]:
    """Yield offsets, sizes and first element of each box, with dims in the order of memory."""
    if not lengths:
        yield [], [], begin
        return
    row = math.prod(lengths[1:])
    # Rows [first, last) are whole; there are none if the range lies within one row.
    first, last = -(-begin // row), end // row
    if begin < first * row:
        yield from walk_row(first - 1, begin, min(end, first * row), lengths)
    if first < last:
        yield [first, *[0] * (len(lengths) - 1)], [last - first, *lengths[1:]], first * row
    if max(first, last) * row < end:
        yield from walk_row(max(first, last), max(first, last) * row, end, lengths)


def walk_row(
    number: int, begin: int, end: int, lengths: Sequence[int]
) -> Iterator[tuple[list[int], list[int], int]]:
    """Yield the boxes of a range within one row."""
    start = number * math.prod(lengths[1:])
    for offsets, sizes, first in walk(begin - start, end - start, lengths[1:]):
        yield [number, *offsets], [1, *sizes], start + first
