"""Flat memory seen in a tensor's shape."""

from __future__ import annotations

import itertools

import torch

from kadril.sharded.ownership.memory_order import shaped, strides_in_memory


def test_strides_are_those_of_shaped_memory() -> None:
    shape = (2, 3, 5, 7)
    flat = torch.arange(2 * 3 * 5 * 7)
    for dims in itertools.permutations(range(4)):
        expected = shaped(flat, shape, dims)
        assert flat.as_strided(shape, strides_in_memory(shape, dims)).equal(expected)
    assert strides_in_memory((), ()) == ()
