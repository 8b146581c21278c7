"""Batch, group and layer norm: torch's results, gradients and running statistics, on any cut."""

from __future__ import annotations

import copy
import random
from unittest import mock

import pytest
import torch
from norm_kit import batch_norm_twin, compare, group_norm_twin, layer_norm_twin, randomize
from partition_kit import TRANSPORTS, block, grid, grid_shapes, random_sizes
from rounding_kit import U, error

from kadril.errors import MismatchError
from kadril.nn.norm import standardize
from kadril.nn.norm.batch_norm import (
    DistributedBatchNorm,
    DistributedBatchNorm1d,
    DistributedBatchNorm2d,
    DistributedBatchNorm3d,
)
from kadril.nn.norm.group_norm import DistributedGroupNorm
from kadril.nn.norm.layer_norm import DistributedLayerNorm
from kadril.partition import world_partition
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


@ranks(1, 2, 3, 4)
def test_batch_norm_is_torchs_on_any_cut(world: World) -> None:
    draw = random.Random(1)
    kinds = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
    for num_dims, kind in [*kinds.items(), (5, torch.nn.BatchNorm3d)]:
        for shape in grid_shapes(num_dims, [world.size]):
            P_x = grid(world, shape)
            size = [draw.randint(4, 6) for _ in shape]
            layer = randomize(
                kind(
                    size[1],
                    eps=draw.choice([1e-5, 0.1]),
                    momentum=draw.choice([0.1, 0.7, None]),
                    affine=draw.random() < 0.8,
                    track_running_stats=draw.random() < 0.8,
                )
            )
            x = integer_valued(size, seed=draw.randint(0, 999))
            compare(P_x, layer, batch_norm_twin, x, random_sizes(size, P_x, draw))


@ranks(3, transports=TRANSPORTS)
def test_running_statistics_over_several_batches(world: World) -> None:
    for momentum, shape in [(0.1, (3, 1, 1)), (None, (1, 1, 3)), (None, (1, 3, 1))]:
        P_x = grid(world, shape)
        layer = torch.nn.BatchNorm1d(4, momentum=momentum).double()
        twin = DistributedBatchNorm1d.of(copy.deepcopy(layer), P_x)
        for batch in range(4):
            x = integer_valued((5, 4, 3), seed=batch)
            layer(x)
            twin(block(x, P_x))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            # Means and variances of 15 numbers of at most 8, and four steps.
            assert error(getattr(twin, name), getattr(layer, name)) <= 4 * 16 * 15 * 64 * U, name
        layer.eval()
        twin.eval()
        compare(P_x, layer, lambda P, same, twin=twin: twin, x, None)
        layer.train()
        assert not twin.training
        twin.load_state_dict(layer.state_dict())


@ranks(4)
def test_batch_norm_in_evaluation_and_without_running_statistics(world: World) -> None:
    for shape in [(2, 1, 2, 1), (1, 2, 1, 2), (1, 1, 1, 3)]:
        P_x = grid(world, shape)
        layer = randomize(torch.nn.BatchNorm2d(4))
        layer(integer_valued((4, 4, 5, 3), seed=3))
        layer.eval()
        for sizes in (None, random_sizes((4, 4, 5, 3), P_x, random.Random(1))):
            compare(P_x, layer, batch_norm_twin, integer_valued((4, 4, 5, 3), seed=4), sizes)
        bare = randomize(torch.nn.BatchNorm2d(4, track_running_stats=False)).eval()
        compare(P_x, bare, batch_norm_twin, integer_valued((4, 4, 5, 3), seed=5), None)


@ranks(1, 2, 3, 4)
def test_group_norm_is_torchs_on_any_cut(world: World) -> None:
    draw = random.Random(2)
    for num_dims in (2, 3, 4):
        for shape in grid_shapes(num_dims, [world.size]):
            P_x = grid(world, shape)
            num_groups = draw.choice([1, 2, 3, 6])
            size = [draw.randint(2, 4), 6, *(draw.randint(3, 5) for _ in shape[2:])]
            layer = randomize(torch.nn.GroupNorm(num_groups, 6, affine=draw.random() < 0.8))
            x = integer_valued(size, seed=draw.randint(0, 999))
            compare(P_x, layer, group_norm_twin, x, random_sizes(size, P_x, draw))


@ranks(1, 2, 3, 4)
def test_layer_norm_is_torchs_on_any_cut(world: World) -> None:
    draw = random.Random(3)
    for num_dims, num_normalized in [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)]:
        for shape in grid_shapes(num_dims, [world.size]):
            P_x = grid(world, shape)
            size = [draw.randint(3, 6) for _ in shape]
            layer = randomize(
                torch.nn.LayerNorm(
                    size[-num_normalized:],
                    elementwise_affine=draw.random() < 0.8,
                    bias=draw.random() < 0.5,
                )
            )
            x = integer_valued(size, seed=draw.randint(0, 999))
            compare(P_x, layer, layer_norm_twin, x, random_sizes(size, P_x, draw))


@pytest.mark.parametrize("piece", [1, 7, 40])
@ranks(2)
def test_matrices_larger_than_a_piece(world: World, piece: int) -> None:
    """Parts of a row, single rows, and several rows at a time."""
    x = integer_valued((4, 6, 5, 4), seed=3)
    P_x = grid(world, (1, 1, 2, 1))
    with mock.patch.object(standardize, "PIECE", piece):
        for layer, twin in [
            (torch.nn.BatchNorm2d(6), batch_norm_twin),
            (torch.nn.GroupNorm(3, 6), group_norm_twin),
            (torch.nn.LayerNorm([6, 5, 4]), layer_norm_twin),
        ]:
            compare(P_x, randomize(layer), twin, x, None)
        half = DistributedGroupNorm(P_x, 3, 6)(block(x, P_x).bfloat16())
    # One rounding to 8 bits of |y| < 4.
    wanted = torch.nn.functional.group_norm(x, 3)
    assert error(half.detach().double(), block(wanted, P_x)) <= 4 * 2.0**-8


@ranks(2, 4)
def test_the_mean_may_be_far_from_zero(world: World) -> None:
    """E x^2 - (E x)^2 would leave nothing of a variance of 1 about a mean of 1000 in float32."""
    P_x = grid(world, (2, 1, world.size // 2))
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(8, 3, 512, generator=generator) + 1000).requires_grad_()
    exact = torch.nn.functional.batch_norm(x.detach().double(), None, None, training=True)
    mine = block(x.detach(), P_x)
    got = DistributedBatchNorm1d(P_x, 3, affine=False)(mine)
    # x - float(mean) is exact (both are near 1000), so what is left are the roundings of the
    # product and the sum, and of the variance: a few 2^-24 relative to |y| <= 5.
    assert float((got.double() - block(exact, P_x)).abs().max()) <= 5 * 8 * 2.0**-24
    half = DistributedBatchNorm1d(P_x, 3)(block(x.detach() - 1000, P_x).bfloat16())
    assert half.dtype == torch.bfloat16


@ranks(3)
def test_gradients_by_differences(world: World) -> None:
    """The layer as a function of one worker's number at a time, against its backward pass."""
    P_x = grid(world, (1, 1, 3))
    x = integer_valued((2, 4, 6), seed=1) / 4
    g = block(integer_valued((2, 4, 6), seed=2), P_x)
    layers = [
        DistributedBatchNorm(P_x, 4).double().train(),
        DistributedGroupNorm(P_x, 2, 4).double(),
        DistributedLayerNorm(P_x, [4, 6]).double(),
    ]
    step = 2.0**-17
    for layer in layers:
        mine = block(x, P_x).requires_grad_()
        layer(mine).backward(g)
        for place in [(0, 0, 0), (1, 3, 5), (0, 2, 3)]:
            moved = []
            for sign in (1, -1):
                y = x.clone()
                y[place] += sign * step
                part = (layer(block(y, P_x)).detach() * g).sum().reshape(1)
                world.transport.allreduce(part)
                moved.append(float(part))
            slope = (moved[0] - moved[1]) / (2 * step)
            marked = torch.zeros_like(x)
            marked[place] = 1
            assert mine.grad is not None
            part = (mine.grad * block(marked, P_x)).sum().reshape(1)
            world.transport.allreduce(part)
            # Third derivatives of up to about 1000 times step^2, and 1e-13 of rounding over step.
            assert abs(slope - float(part)) <= 1e-6


@ranks(2)
def test_evaluation_is_linear(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    layer = DistributedBatchNorm1d(P_x, 4, eps=0.0, affine=False).double().eval()
    x = integer_valued((2, 4, 3), seed=1, rank=world.rank)
    check_autograd_adjoint(world, layer, x, integer_valued((2, 4, 3), seed=2, rank=world.rank))


@ranks(4)
def test_a_rank_whose_input_needs_no_gradient(world: World) -> None:
    P_x = grid(world, (4, 1, 1))
    for layer in (
        DistributedBatchNorm1d(P_x, 2, affine=False),
        DistributedLayerNorm(grid(world, (1, 1, 4)), [2, 12]),
    ):
        x = torch.ones(2, 2, 3) * torch.arange(3.0) + world.rank
        x.requires_grad_(world.rank == 1)
        layer(x).sum().backward()
        assert (x.grad is not None) == (world.rank == 1)


@ranks(3)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (3, 1, 1))
    layer = DistributedBatchNorm1d(P_x, 4)
    with pytest.raises(ValueError, match=r"DistributedBatchNorm1d\(4\).*5 channels in dim 1"):
        layer(torch.zeros(2, 5, 3))
    with pytest.raises(MismatchError, match="dim 2"):
        layer(torch.zeros(2, 4, 3 + world.rank))
    with pytest.raises(TypeError, match="int64"):
        layer(torch.zeros(2, 4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="more than one value"):
        layer(torch.zeros(1 if world.rank == 1 else 0, 4, 1))
    with pytest.raises(ValueError, match="4 axes"):
        DistributedBatchNorm2d(P_x, 4)
    with pytest.raises(ValueError, match="5 axes"):
        DistributedBatchNorm3d(P_x, 4)
    with pytest.raises(ValueError, match="batch and channels"):
        DistributedGroupNorm(world_partition(world), 2, 4)
    with pytest.raises(ValueError, match="dim 2, along axis 2"):
        DistributedLayerNorm(P_x, 7)(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="one value per group"):
        DistributedGroupNorm(P_x, 4, 4)(torch.zeros(1 if world.rank == 1 else 0, 4, 1))
    with pytest.raises(ValueError, match="6 channels"):
        DistributedGroupNorm(P_x, 2, 4)(torch.zeros(2, 6, 3))
    one = grid(world, (1, 1, 1))
    other = DistributedBatchNorm1d(one, 4)
    if not one.active:
        with pytest.raises(ValueError, match="zero-volume"):
            other(torch.zeros(2, 4, 3))
    assert layer(torch.ones(2, 4, 3)).shape == (2, 4, 3)
