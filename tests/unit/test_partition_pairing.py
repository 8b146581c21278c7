"""Pairs of workers of two partitions: by the shapes alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.partition.group import layers
from kadril.partition.pairing import index_of, pair, rank_at

SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(SHAPES)
def test_places_in_the_order_of_numpy(shape: list[int]) -> None:
    for rank, index in enumerate(np.ndindex(*shape)):
        assert index_of(rank, shape) == index
        assert rank_at(index, shape) == rank


@given(SHAPES, st.data())
def test_pairs_are_those_of_numpy(large: list[int], data: st.DataObject) -> None:
    """Numbers of the smaller partition, broadcast as an array, say whom each worker belongs to."""
    padded = [data.draw(st.sampled_from([1, length])) for length in large]
    leading = next((axis for axis, length in enumerate(padded) if length > 1), len(padded) - 1)
    small = padded[data.draw(st.integers(0, leading)) :]
    transposes = data.draw(st.booleans()), data.draw(st.booleans())
    sources = np.arange(math.prod(small)).reshape(small)
    workers = np.arange(math.prod(large)).reshape(large)
    given_small = small[::-1] if transposes[0] else small
    given_large = large[::-1] if transposes[1] else large
    if transposes[0]:
        sources = np.arange(sources.size).reshape(given_small).T
    if transposes[1]:
        workers = np.arange(workers.size).reshape(given_large).T
    owner = np.broadcast_to(sources, large)
    found = pair(given_small, given_large, *transposes)
    assert [source for source, _ in found] == list(range(sources.size))
    for source, many in found:
        assert sorted(many) == sorted(workers[owner == source].tolist())


@pytest.mark.parametrize(
    ("small", "large"), [([2], [3]), ([2, 1], [2, 3, 2]), ([1, 1], [2]), ([3], [1])]
)
def test_shapes_that_do_not_fit(small: list[int], large: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot stand for"):
        pair(small, large)


@given(st.lists(st.sets(st.integers(0, 7), min_size=1).map(sorted).map(tuple), max_size=8))
def test_sets_are_made_in_layers_of_disjoint_ones(sets: list[tuple[int, ...]]) -> None:
    found = layers(sets)
    assert sorted(each for layer in found for each in layer) == sorted(sets)
    for layer in found:
        assert len({rank for each in layer for rank in each}) == sum(len(each) for each in layer)
