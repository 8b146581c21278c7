"""Dropout: the same elements on any cut, as many as there should be, and exact adjoints."""

from __future__ import annotations

import math
import random

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, grid_shapes, random_sizes

from kadril.nn.dropout import layers as dropout
from kadril.nn.dropout.mask import keep_mask
from kadril.partition import Interval, Partition, world_partition
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


def alone(world: World) -> Partition:
    """A partition of this rank only, for a layer as one process would have it."""
    return world_partition(world).create_cartesian_subtopology_partition([False])


def whole_mask(sizes: list[int], p: float, seed: int, call: int) -> torch.Tensor:
    return keep_mask([Interval(0, size) for size in sizes], sizes, p, seed, call)


@ranks(1, 2, 3, 4, transports=TRANSPORTS[:2])
def test_the_mask_does_not_depend_on_the_cut(world: World) -> None:
    draw = random.Random(1)
    for shape in grid_shapes(3, [world.size]):
        P_x = grid(world, shape)
        sizes = random_sizes((5, 6, 7), P_x, draw)
        x = integer_valued((5, 6, 7), seed=1) + 10
        for kind, num_dims in [
            (dropout.DistributedDropout, 3),
            (dropout.DistributedDropout1d, 2),
        ]:
            torch.manual_seed(world.rank)
            layer = kind(P_x, 0.25)
            for call in range(2):
                kept = whole_mask([5, 6, 7][:num_dims], 0.25, layer.seed, call)
                kept = kept.view(*kept.shape, *[1] * (3 - num_dims))
                # Division by 3/4 is a multiplication by the rounded 4/3 on both sides.
                expected = (x * (1.0 / 0.75)).masked_fill(~kept, 0.0)
                mine = block(x, P_x, sizes)
                got = layer(mine)
                assert torch.equal(got, block(expected, P_x, sizes))
                assert torch.equal(mine, block(x, P_x, sizes))
            assert layer.eval()(mine) is mine
            assert layer.num_calls == 2


@ranks(2, transports=["mpi:openmpi"])
def test_masks_of_all_kinds(world: World) -> None:
    P_x = grid(world, (1, 2, 1, 1))
    x = integer_valued((4, 6, 3, 2), seed=2)
    for kind, num_dims in [
        (dropout.DistributedDropout2d, 2),
        (dropout.DistributedAlphaDropout, 4),
        (dropout.DistributedFeatureAlphaDropout, 2),
    ]:
        layer = kind(P_x, 0.5, seed=5)
        kept = whole_mask([4, 6, 3, 2][:num_dims], 0.5, 5, 0)
        kept = kept.view(*kept.shape, *[1] * (4 - num_dims)).expand(x.shape)
        got = layer(block(x, P_x))
        mine = block(kept, P_x)
        if kind is dropout.DistributedDropout2d:
            assert torch.equal(got, block(x * 2 * kept, P_x))
        else:
            # All dropped elements are one number, and the kept ones a x + b with one slope.
            assert got[~mine].unique().numel() == 1
            s, p = dropout.SATURATED, 0.5
            slope = 1 / math.sqrt((1 - p) * (1 + p * s * s))
            # Three roundings of numbers of at most 16.
            wanted = slope * block(x, P_x) - slope * p * s
            assert float((got - wanted)[mine].abs().max()) <= 3 * 16 * 2.0**-52
        again = kind(P_x, 0.5, True, seed=5)
        y = block(x, P_x)
        assert again(y) is y
        assert torch.equal(y, got)
        two = kind.of(torch.nn.Dropout(0.3, inplace=True).eval(), P_x)
        assert (two.p, two.inplace, two.training) == (0.3, True, False)


@ranks(3)
def test_adjoint(world: World) -> None:
    P_x = grid(world, (1, 3))
    layer = dropout.DistributedDropout(P_x, 0.5, seed=3)

    def same_call(x: torch.Tensor) -> torch.Tensor:
        layer.num_calls = 7
        return layer(x)  # type: ignore[no-any-return]

    x = integer_valued((4, 5), seed=1, rank=world.rank)
    check_autograd_adjoint(world, same_call, x, integer_valued((4, 5), seed=2, rank=world.rank))


@ranks(2)
def test_seeds_and_extremes(world: World) -> None:
    P_x = grid(world, (2, 1))
    torch.manual_seed(world.rank)
    layer = dropout.DistributedDropout(P_x)
    torch.manual_seed(0)
    assert layer.seed == dropout.DistributedDropout(alone(world)).seed
    x = torch.ones(3, 4)
    assert torch.equal(dropout.DistributedDropout(P_x, 1.0)(x), torch.zeros(3, 4))
    assert torch.equal(dropout.DistributedDropout(P_x, 0.0)(x), x)
    assert torch.equal(dropout.DistributedDropout(P_x, 1e-20)(x), x)
    assert dropout.DistributedDropout(P_x, seed=2**64 + 5).seed == 5
    assert torch.equal(dropout.DistributedAlphaDropout(P_x, 0.0)(x), x)
    some = grid(world, (1, 1))
    nothing = dropout.DistributedDropout(some)(x if some.active else torch.empty(0))
    assert nothing.shape == ((3, 4) if some.active else (0,))
    with pytest.raises(ValueError, match="from 0 to 1"):
        dropout.DistributedDropout(P_x, 1.5)
    with pytest.raises(ValueError, match="one axis for each dim"):
        layer(torch.ones(3))
    with pytest.raises(ValueError, match="batch and channels"):
        dropout.DistributedDropout1d(grid(world, (2,)))(torch.ones(3))


@ranks(1)
def test_as_many_are_kept_as_should_be(world: World) -> None:
    """Frequencies of n elements are within 5 standard deviations, sqrt(p (1 - p) / n) each.

    Seeds are fixed, so this fails always or never.
    """
    assert world.size == 1
    n = 1 << 18
    for p, seed in [(0.1, 0), (0.5, 1), (0.9, -3), (0.5, 2**70)]:
        kept = whole_mask([n], p, seed, 0)
        allowed = 5 * math.sqrt(p * (1 - p) / n)
        assert abs(float(kept.double().mean()) - (1 - p)) <= allowed
    first = whole_mask([n], 0.5, 1, 0)
    others = [
        whole_mask([n], 0.5, 1, 1),  # the next call
        whole_mask([n], 0.5, 2, 0),  # the next seed
        *(first.roll(distance) for distance in (1, 2, 64, 512, 1024, 4096)),  # neighbours
    ]
    for other in others:
        # Two fair coins agree in half of all cases.
        assert abs(float((first == other).double().mean()) - 0.5) <= 5 * math.sqrt(0.25 / n)
    large = keep_mask([Interval(2**40, 2**40 + n)], [2**41], 0.5, 1, 0)
    assert abs(float(large.double().mean()) - 0.5) <= 5 * math.sqrt(0.25 / n)
