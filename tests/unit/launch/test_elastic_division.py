"""Division of an epoch among ranks that change: no sample is lost, none is used twice."""

from __future__ import annotations

import random

import pytest

from kadril.shared_engine.elastic.division import num_shares, take_used


def test_what_is_left_follows_from_counts() -> None:
    assert take_used("abcdefghij", []) == list("abcdefghij")
    assert take_used("abcdefghij", [[2, 1, 1]]) == list("efghij")
    assert take_used("abcdefghij", [[0, 3, 1]]) == list("adfgij")
    assert take_used("abcdefghij", [[2, 1, 1], [1, 3]]) == list("gi")
    assert take_used("abc", [[3]]) == []


@pytest.mark.parametrize(("samples", "ranks"), [(10, 3), (9, 3), (2, 4), (0, 2)])
def test_shares_differ_by_one_at_most(samples: int, ranks: int) -> None:
    shares = num_shares(samples, ranks)
    assert sum(shares) == samples
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


def test_each_sample_is_used_once_over_any_changes() -> None:
    """Ranks with batches of different sizes, which change at random, and go back to commits."""
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    for _ in range(300):
        order = list(range(dice.randrange(0, 60)))
        dice.shuffle(order)
        divisions: list[list[int]] = []
        used: list[int] = []
        while len(used) < len(order):
            left = take_used(order, divisions)
            num_ranks = dice.randrange(1, 6)
            shares = num_shares(len(left), num_ranks)
            counts = [dice.randrange(share + 1) for share in shares]
            if dice.random() < 0.3:
                continue  # a rank was lost before the commit: nothing of it counts
            for rank, count in enumerate(counts):
                used += left[rank::num_ranks][:count]
            divisions.append(counts)
        assert sorted(used) == sorted(order), f"seed {seed}: {order} {divisions}"
