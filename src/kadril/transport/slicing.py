"""Cut flat memory into parts, in bytes, always between elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kadril.transport.buffer import Memory

__all__ = ["chunks_of", "even_parts", "view_parts"]


def even_parts(num_bytes: int, num_parts: int, itemsize: int) -> list[int]:
    """Lengths of parts that differ by one element at most, the longer ones first."""
    each, rest = divmod(num_bytes // itemsize, num_parts)
    return [(each + (part < rest)) * itemsize for part in range(num_parts)]


def view_parts(memory: Memory, parts: Sequence[int]) -> list[Memory]:
    """Consecutive parts of flat memory, as views."""
    views, begin = [], 0
    for num_bytes in parts:
        views.append(memory[begin : begin + num_bytes])
        begin += num_bytes
    return views


def chunks_of(num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover some memory, none longer than `chunk_bytes`."""
    for begin in range(0, num_bytes, chunk_bytes):
        yield begin, min(begin + chunk_bytes, num_bytes)
