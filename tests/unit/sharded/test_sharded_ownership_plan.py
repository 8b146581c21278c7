"""Plans: every element has one owner, parts are even, and the seed's walk is the seed's."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kadril.sharded.ownership.memory_order import dims_in_memory, flat_order, shaped
from kadril.sharded.ownership.ownership_plan import (
    BUCKET_BYTES,
    LARGE_PARAMETER_BYTES,
    Entry,
    Plan,
    make_plan,
)
from kadril.sharded.ownership.partition_rules import owners_of


def entries_of(
    sizes: list[int], dtype: torch.dtype = torch.float32, frozen: frozenset[int] = frozenset()
) -> list[Entry]:
    return [
        Entry(f"p{place}", (size,), dtype, (0,), 0, place in frozen, torch.device("cpu"))
        for place, size in enumerate(sizes)
    ]


def random_sizes(dice: random.Random) -> list[int]:
    return [
        dice.choice([0, 1, dice.randrange(100), dice.randrange(10_000), dice.randrange(600_000)])
        for _ in range(dice.randrange(1, 40))
    ]


def check_cover(plan: Plan) -> None:
    """Each parameter's pieces are in order and without gaps; each rank's parts do not overlap."""
    used: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry, pieces in zip(plan.entries, plan.pieces, strict=True):
        assert pieces, entry
        end = 0
        for piece in pieces:
            assert piece.begin == end
            end = piece.end
            length = piece.end - piece.begin
            count = plan.buckets[piece.bucket].counts[piece.rank]
            assert 0 <= piece.offset <= piece.offset + length <= count
            used.setdefault((piece.bucket, piece.rank), []).append(
                (piece.offset, piece.offset + length)
            )
        assert end == entry.num_elements
    for ranges in used.values():
        ordered = sorted(ranges)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize("rule", ["flat", "greedy", "largest_first"])
def test_every_element_has_one_owner(rule: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    dice = random.Random(seed)
    for _ in range(40):
        sizes = random_sizes(dice)
        frozen = frozenset(place for place in range(len(sizes)) if dice.random() < 0.2)
        dtype = dice.choice([torch.float16, torch.float32, torch.float64, torch.complex128])
        num_ranks = dice.randrange(1, 9)
        plan = make_plan(entries_of(sizes, dtype, frozen), num_ranks, rule)
        check_cover(plan)
        if rule != "flat":
            assert all(len(pieces) == 1 for pieces in plan.pieces), f"seed {seed}"
        again = make_plan(entries_of(sizes, dtype, frozen), num_ranks, rule)
        assert again.pieces == plan.pieces
        assert again.lines == plan.lines


def test_flat_parts_are_even_whatever_the_borders() -> None:
    """A bucket is cut at cache lines, so no rank has more than a line more of it than another."""
    sizes = [30522 * 768, 512 * 768, *[768, 768 * 768, 3072 * 768] * 12]  # BERT-base, about
    for num_ranks in (2, 3, 8, 16):
        plan = make_plan(entries_of(sizes), num_ranks, "flat")
        held = [0] * num_ranks
        for piece in itertools.chain(*plan.pieces):
            held[piece.rank] += piece.num_elements
        # A small parameter is rounded up to a line as well.
        slack = 16 * len(plan.buckets) + 16 * len(sizes)
        assert max(held) <= sum(sizes) / num_ranks + slack
        for bucket in plan.buckets:
            assert all(count % 16 == 0 for count in bucket.counts[:-1])


def test_large_ones_travel_alone_and_small_ones_together_last_first() -> None:
    large = LARGE_PARAMETER_BYTES // 4
    sizes = [10, large, 10, 20, large - 1, *[BUCKET_BYTES // 16] * 5]
    plan = make_plan(entries_of(sizes, frozen=frozenset({0})), 2, "flat")
    members = [bucket.members for bucket in plan.buckets]
    assert (1,) in members
    assert members[-1] == (0,), "frozen ones last"
    for bucket in plan.buckets:
        if len(bucket.members) > 1:
            assert list(bucket.members) == sorted(bucket.members, reverse=True)
            assert bucket.num_elements * 4 <= BUCKET_BYTES + 64 * len(bucket.members)


def test_the_walk_of_the_seed() -> None:
    """Each to the rank with the fewest elements so far, ties to the lowest; not sorted."""
    sizes = [5, 1, 1, 1, 9, 2]
    trainable = [False] * 6
    assert owners_of("greedy", sizes, trainable, 2) == [0, 1, 1, 1, 1, 0]
    assert owners_of("largest_first", sizes, trainable, 2) == [1, 1, 1, 0, 0, 1]
    # Frozen ones are dealt out last, and do not push the others around.
    frozen = [True, False, False, False, False, False]
    assert owners_of("greedy", sizes, frozen, 2) == [0, 0, 1, 0, 1, 0]
    for rule in ("flat", "smallest_first"):  # it would have been taken for "greedy"
        with pytest.raises(KeyError, match=rule):
            owners_of(rule, sizes, frozen, 2)


def test_a_rule_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="no partition rule 'round'; use one of flat, greedy"):
        make_plan(entries_of([1]), 2, "round")


def test_lines_say_what_differs() -> None:
    weight = Entry("w", (2, 3), torch.float32, (1, 0), 1, True, torch.device("cpu"))
    line = make_plan([weight], 2, "flat").lines[1]
    assert line == ("parameter 'w': torch.float32 (2, 3), dims (1, 0), parameter group 1, frozen")


def test_layouts() -> None:
    values = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    for tensor in (
        values,
        values.to(memory_format=torch.channels_last),
        values.permute(3, 1, 0, 2),
        torch.arange(5.0),
        torch.tensor(3.0),
    ):
        dims = dims_in_memory(tensor)
        flat = flat_order(tensor, dims)
        assert flat.data_ptr() == tensor.data_ptr(), "a view"
        again = shaped(flat, tensor.shape, dims)
        assert torch.equal(again, tensor)
        assert again.stride() == tensor.stride()
    gaps = values[:, :, ::2]
    assert dims_in_memory(gaps) == (0, 1, 2, 3)
