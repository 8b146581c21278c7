"""Cuts of memory: every byte once, between elements, evenly."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from kadril.transport.slicing import chunks_of, even_parts, view_parts

ITEMSIZES = st.sampled_from([1, 2, 4, 8, 16])


@given(count=st.integers(0, 10_000), num_parts=st.integers(1, 40), itemsize=ITEMSIZES)
def test_even_parts(count: int, num_parts: int, itemsize: int) -> None:
    parts = even_parts(count * itemsize, num_parts, itemsize)
    assert sum(parts) == count * itemsize
    assert len(parts) == num_parts
    assert all(part % itemsize == 0 for part in parts)
    assert max(parts) - min(parts) in (0, itemsize)


@given(num_bytes=st.integers(0, 10_000), chunk=st.integers(1, 3000))
def test_chunks_cover_every_byte_once(num_bytes: int, chunk: int) -> None:
    covered = [byte for begin, end in chunks_of(num_bytes, chunk) for byte in range(begin, end)]
    assert covered == list(range(num_bytes))
    assert all(0 < end - begin <= chunk for begin, end in chunks_of(num_bytes, chunk))


@given(parts=st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_views_lie_in_the_memory(parts: list[int]) -> None:
    memory = torch.arange(sum(parts), dtype=torch.int64)
    views = view_parts(memory, parts)
    assert [len(view) for view in views] == parts
    assert torch.equal(torch.cat(views), memory)
    for view in views:
        view.fill_(-1)
    assert (memory == -1).all()
