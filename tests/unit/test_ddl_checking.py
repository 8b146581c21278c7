"""The arithmetic of `check`: errors, their floor, and links that stand out."""

from __future__ import annotations

import math

import pytest
import torch

from kadril.ddl.checking import find_worst, floor_of
from kadril.ddl.links import Link, find_slow_link
from kadril.transport.tiers.tier_probe import pair_up


def worst(value: list[float], reference: list[float], limit: float = 0.1, floor: float = 1e-3):
    return find_worst([torch.tensor(value)], [torch.tensor(reference)], [floor], limit)


def test_equal_lists_are_right() -> None:
    assert worst([1.0, -2.0, 0.0], [1.0, -2.0, 0.0]) is None
    assert worst([], []) is None


def test_the_worst_element_is_found() -> None:
    found = worst([1.0, 2.5, 4.0, 9.0], [1.0, 2.0, 1.0, 8.0])
    assert found is not None
    assert (found.parameter, found.element, found.value, found.reference) == (0, 2, 4.0, 1.0)
    assert (found.error, found.num_wrong) == (3.0, 3)


def test_an_error_at_the_limit_is_allowed() -> None:
    assert worst([1.5], [1.0], limit=0.5) is None
    assert worst([1.5], [1.0], limit=0.49) is not None


def test_near_zero_errors_are_held_against_the_floor() -> None:
    """DDL divides by the reference, which is 0 where two gradients cancel out."""
    assert worst([1e-5], [0.0], limit=0.1, floor=1e-3) is None
    found = worst([1e-3], [0.0], limit=0.1, floor=1e-3)
    assert found is not None
    assert found.error == pytest.approx(1.0, rel=1e-6)  # 1e-3 in float32 is rounded


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_right(broken: float) -> None:
    for value, reference in ((broken, 1.0), (1.0, broken), (broken, broken)):
        found = worst([0.0, value], [0.0, reference], limit=1e30)
        assert found is not None
        assert (found.element, found.error) == (1, math.inf)


def test_the_worst_of_several_parameters() -> None:
    values = [torch.ones(2), torch.tensor([[1.0, 3.0]]), torch.ones(3, dtype=torch.int64)]
    references = [torch.ones(2) * 2, torch.ones(1, 2), torch.ones(3, dtype=torch.int64)]
    found = find_worst(values, references, [1e-3, 1e-3, 1.0], 0.1)
    assert found is not None
    assert (found.parameter, found.element, found.num_wrong) == (1, 1, 3)


def test_complex_and_whole_numbers() -> None:
    pair = [torch.tensor([1 + 1j])], [torch.tensor([1 - 1j])]
    found = find_worst(*pair, [1e-3], 0.1)
    assert found is not None
    assert found.value == 1 + 1j
    assert found.error == pytest.approx(2 / math.sqrt(2))
    flags = find_worst([torch.tensor([True])], [torch.tensor([False])], [1.0], 0.5)
    assert flags is not None


def test_the_floor_keeps_half_of_the_digits() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        eps = torch.finfo(dtype).eps
        assert floor_of(dtype, 8.0) == 8.0 * math.sqrt(eps)
        assert floor_of(dtype, 0.0) > 0.0
    assert floor_of(torch.int32, 1e6) == 1.0


@pytest.mark.parametrize("num_hosts", range(2, 9))
def test_every_two_hosts_are_probed_once_and_none_twice_at_once(num_hosts: int) -> None:
    rounds = list(pair_up(num_hosts))
    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    everyone = sorted(pair for pairs in rounds for pair in pairs)
    assert everyone == [(a, b) for a in range(num_hosts) for b in range(a + 1, num_hosts)]


def test_a_slow_link_stands_out() -> None:
    quick = [Link((0, 1), 0.010), Link((0, 2), 0.011)]
    assert find_slow_link([*quick, Link((1, 2), 0.012)]) is None
    slow = Link((1, 2), 0.050)
    assert find_slow_link([*quick, slow]) == (slow, None)
    assert find_slow_link([slow]) is None, "with two hosts there is nothing to compare with"


def test_a_slow_uplink_is_told_from_a_slow_link() -> None:
    """All links of such a host are slow, and with three hosts these are most of the links."""
    links = [Link((0, 1), 0.010), Link((0, 2), 0.050), Link((1, 2), 0.052)]
    assert find_slow_link(links) == (links[2], 2)
