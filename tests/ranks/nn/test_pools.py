"""Pools on partitions give what torch's pools give in one process, bit for bit.

Inputs are small whole numbers in float64: sums are exact in any order, and an average is one exact
sum, rounded once in one division, so outputs are compared with `==`. Gradients of outputs are
multiples of all divisors that occur, so gradients of inputs are whole numbers as well.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from box_kit import seeded
from partition_kit import LayerCase, block, draw_cases, grid
from pool_cases import AVG, FACTOR, MAX, check_pool, some_pool

from kadril.errors import MismatchError
from kadril.nn.pool.avg import DistributedAvgPool1d, DistributedAvgPool2d
from kadril.nn.pool.max import DistributedMaxPool1d, DistributedMaxPool2d
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

Cases = dict[int, list[LayerCase]]


@pytest.fixture(scope="module")
def max_cases() -> Cases:
    return {
        size: draw_cases(seeded(partial(some_pool, num_workers=size, is_max=True)), 30)
        for size in (1, 2, 3, 4)
    }


@pytest.fixture(scope="module")
def avg_cases() -> Cases:
    return {
        size: draw_cases(seeded(partial(some_pool, num_workers=size, is_max=False)), 30)
        for size in (1, 2, 3, 4)
    }


@ranks(1, 2, 3, 4)
def test_max_pool_is_torchs(world: World, max_cases: Cases) -> None:
    for case in max_cases[world.size]:
        check_pool(world, case, is_max=True)


@ranks(1, 2, 3, 4)
def test_avg_pool_is_torchs(world: World, avg_cases: Cases) -> None:
    for case in avg_cases[world.size]:
        check_pool(world, case, is_max=False)


@ranks(4, transports=["shm", "c10d", "mpi:openmpi"])
def test_avg_pool_is_adjoint_to_its_backward_pass(world: World, avg_cases: Cases) -> None:
    for case in avg_cases[world.size][:12]:
        given = dict(case.settings)
        num_spatial = given.pop("num_spatial")
        _, twin_class = AVG[num_spatial]
        P_x = grid(world, case.partition)
        twin = twin_class(P_x, **given)
        # Multiples of all divisors on both sides, so that nothing is rounded.
        mine = block(integer_valued(case.shape, seed=4), P_x, case.blocks) * FACTOR[num_spatial]
        like = twin(mine)
        y = integer_valued(like.shape, seed=5, rank=world.rank) * FACTOR[num_spatial]
        check_autograd_adjoint(world, twin, mine.detach(), y)


@ranks(2, 4)
def test_indices_of_maxima_are_those_of_the_global_tensor(world: World, max_cases: Cases) -> None:
    for case in max_cases[world.size][:30]:
        given = dict(case.settings)
        torch_class, twin_class = MAX[given.pop("num_spatial")]
        x = integer_valued(case.shape, seed=4)
        y, indices = torch_class(**given, return_indices=True)(x)
        P_x = grid(world, case.partition)
        got, found = twin_class(P_x, **given, return_indices=True)(block(x, P_x, case.blocks))
        if P_x.active:
            assert torch.equal(got, block(y, P_x))
            assert torch.equal(found, block(indices, P_x)), case


@ranks(4)
def test_windows_over_many_workers(world: World) -> None:
    """Kernels wider than the neighbour's block gave silently wrong numbers elsewhere."""
    P_x = grid(world, (1, 1, 4))
    x = integer_valued((1, 2, 12), seed=1)
    for kernel in (5, 9):
        layer = torch.nn.MaxPool1d(kernel, stride=1, padding=kernel // 2)
        twin = DistributedMaxPool1d.of(layer, P_x)
        assert torch.equal(twin(block(x, P_x)), block(layer(x), P_x))


@ranks(2)
def test_dtypes(world: World) -> None:
    """Rounded as torch rounds: sums of 8- and 16-bit numbers in 32 bits, whole numbers cut."""
    P_x = grid(world, (1, 1, 1, 2))
    whole = torch.arange(2 * 5 * 9).view(1, 2, 5, 9) * 7 % 31 - 11
    layers = [torch.nn.MaxPool2d(3, 2, 1), torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False)]
    twins = [DistributedMaxPool2d.of(layers[0], P_x), DistributedAvgPool2d.of(layers[1], P_x)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        x = whole.to(dtype)
        for layer, twin in zip(layers, twins, strict=True):
            assert torch.equal(twin(block(x, P_x)), block(layer(x), P_x)), (dtype, layer)
    x = whole.to(torch.uint8)
    assert torch.equal(twins[0](block(x, P_x)), block(layers[0](x), P_x))


@ranks(2)
def test_what_needs_no_exchange_makes_none(world: World) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    twin = DistributedMaxPool2d(P_x, 2)
    x = torch.zeros(1, 1, 4, 6)
    assert twin(x).shape == (1, 1, 2, 3)
    assert twin.gather(x).mine.plan.is_local
    assert twin.stride == (2, 2)
    assert "kernel_size=(2, 2)" in repr(twin)


@ranks(2)
def test_a_batch_without_elements(world: World) -> None:
    """An empty batch was refused as too small for one worker along the axis of the batch."""
    P_x = grid(world, (1, 1, 2, 1))
    assert DistributedMaxPool2d(P_x, 3, 1, 1)(torch.zeros(0, 1, 4, 6)).shape == (0, 1, 4, 6)
    assert DistributedAvgPool2d(P_x, 2)(torch.zeros(0, 1, 4, 6)).shape == (0, 1, 2, 3)


@ranks(2)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    with pytest.raises(ValueError, match=r"P_x has shape 2 x 1.*it needs 4 axes"):
        DistributedMaxPool2d(grid(world, (2, 1)), 2)
    with pytest.raises(ValueError, match="more than half"):
        DistributedAvgPool1d(P_x, 3, padding=2)
    with pytest.raises(ValueError, match="stride 0"):
        DistributedAvgPool1d(P_x, 3, stride=0)
    with pytest.raises(ValueError, match="kernel_size must be a number or 1"):
        DistributedAvgPool1d(P_x, (3, 3))
    with pytest.raises(ValueError, match="divisor_override"):
        DistributedAvgPool2d(grid(world, (1, 1, 2, 1)), 2, divisor_override=0)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.MaxPool1d, got AvgPool1d"):
        DistributedMaxPool1d.of(torch.nn.AvgPool1d(2), P_x)
    pool = DistributedMaxPool1d(P_x, 5)
    with pytest.raises(ValueError, match=r"DistributedMaxPool1d\(kernel 5\): dim 2 has 4 elements"):
        pool(torch.zeros(1, 1, 2))
    with pytest.raises(ValueError, match=r"dim 2 of the output has 1 elements.*2 workers.*axis 2"):
        pool(torch.zeros(1, 1, 3))
    with pytest.raises(MismatchError, match="dim 1"):
        DistributedMaxPool1d(grid(world, (2, 1, 1)), 2)(torch.zeros(1, 1 + world.rank, 4))
    with pytest.raises(ValueError, match="one axis for each dim"):
        pool(torch.zeros(1, 1, 3, 3))
    alone = DistributedMaxPool1d(grid(world, (1, 1, 1)), 2, what="stem")
    if world.rank == 1:
        with pytest.raises(ValueError, match="stem: this rank is not in the partition"):
            alone(torch.zeros(1, 1, 4))
    assert math.isfinite(pool(torch.zeros(1, 1, 6)).sum())
