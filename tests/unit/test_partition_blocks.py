"""Cuts of ranges among workers: arithmetic, without a rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kadril.partition import Interval, balanced_intervals, balanced_sizes, intervals_of


@given(st.integers(0, 200), st.integers(1, 20))
def test_balanced_blocks(size: int, num_blocks: int) -> None:
    sizes = balanced_sizes(size, num_blocks)
    assert sum(sizes) == size
    assert sorted(sizes, reverse=True) == sizes, "the larger ones first"
    assert max(sizes) - min(sizes) <= 1
    blocks = balanced_intervals(size, num_blocks)
    assert [block.size for block in blocks] == sizes
    each, rest = divmod(size, num_blocks)
    assert [block.start for block in blocks] == [
        each * number + min(number, rest) for number in range(num_blocks)
    ]


def test_the_first_ones_get_one_more() -> None:
    assert balanced_sizes(10, 4) == [3, 3, 2, 2]
    assert intervals_of([0, 7, 2]) == [Interval(0, 0), Interval(0, 7), Interval(7, 9)]


@given(*[st.integers(-20, 20)] * 4)
def test_what_two_intervals_have_in_common(a: int, b: int, c: int, d: int) -> None:
    one, other = Interval(a, b), Interval(c, d)
    assert set(range(a, b)) & set(range(c, d)) == set(range(*(one & other)))
    assert (one & other).size == len(set(range(a, b)) & set(range(c, d)))
    assert set(range(*one.shifted(5))) == {number + 5 for number in range(a, b)}
