"""Ranges of memory as boxes: all of it, once, and no more boxes than there have to be."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import pytest
import torch

from kadril.errors import StateError, UnsupportedError
from kadril.sharded.cut_tensor import CutTensor, Part
from kadril.sharded.ownership.memory_order import flat_order, shaped
from kadril.sharded.state.boxes import boxes_of

PART = Part(0, 2, "flat")


@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 5), (1, 6), (6, 1), (2, 3, 4), (2, 1, 3, 2)])
def test_boxes_of_every_range_have_its_elements(shape: tuple[int, ...]) -> None:
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for dims in itertools.permutations(range(len(shape))):
        flat = flat_order(whole, dims)
        for begin, end in itertools.combinations(range(whole.numel() + 1), 2):
            boxes = boxes_of(begin, end, shape, dims)
            assert len(boxes) <= max(1, 2 * len(shape) - 1)
            position = 0
            for offsets, sizes, first in boxes:
                assert first == position
                inside = whole
                for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
                    inside = inside.narrow(dim, offset, size)
                there = flat[begin + first : begin + first + inside.numel()]
                assert torch.equal(shaped(there, sizes, dims), inside)
                position += inside.numel()
            assert position == end - begin


def test_an_empty_range_is_one_box_without_elements() -> None:
    assert boxes_of(0, 0, (0, 3), (0, 1)) == [((0, 0), (0, 0), 0)]


def test_a_cut_tensor_travels_and_does_not_compute() -> None:
    local = torch.arange(5.0)
    cut = CutTensor(local, (3, 4), (1, 0), 2, PART)
    saved = io.BytesIO()
    torch.save(cut, saved)
    saved.seek(0)
    copies = [pickle.loads(pickle.dumps(cut)), torch.load(saved), copy.deepcopy(cut), cut.clone()]  # noqa: S301
    for each in copies:
        assert type(each) is CutTensor
        assert (each.shape, each.dims, each.begin, each.end) == ((3, 4), (1, 0), 2, 7)
        assert each.part == PART
        assert torch.equal(each.local, local)
        assert each.local.data_ptr() != local.data_ptr()
    assert "elements 2 to 7 of (3, 4)" in repr(cut)
    with pytest.raises(UnsupportedError, match=r"a part of the tensor; .* `local`"):
        cut + 1
    with pytest.raises(StateError, match="only elements 2 to 7"):
        cut.whole()
    whole = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(CutTensor(whole.T.reshape(-1), (3, 4), (1, 0), 0, PART).whole(), whole)
