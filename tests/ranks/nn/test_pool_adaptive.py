"""Adaptive pools on partitions give what torch's give in one process, bit for bit.

Inputs are small whole numbers in float64, so sums are exact in any order, and divisions are done in
torch's order: outputs are compared with `==`. Gradients of outputs are multiples of all sizes of
bins that occur, so gradients of inputs are whole numbers as well.

An output dim of size 1 is on every worker of its axis: each of them runs backward with the same
gradient, as layers that all of them have would give it.
"""

from __future__ import annotations

import math
from functools import partial
from random import Random

import pytest
import torch
from box_kit import run, seeded, sequential, shared_block, some_input
from partition_kit import LayerCase, block, draw_cases, grid

from kadril.nn.pool.adaptive_avg import (
    DistributedAdaptiveAvgPool1d,
    DistributedAdaptiveAvgPool2d,
    DistributedAdaptiveAvgPool3d,
)
from kadril.nn.pool.adaptive_max import (
    DistributedAdaptiveMaxPool1d,
    DistributedAdaptiveMaxPool2d,
    DistributedAdaptiveMaxPool3d,
)
from kadril.testing import integer_valued, ranks
from kadril.world import World

Cases = dict[int, list[LayerCase]]

AVG = {
    1: (torch.nn.AdaptiveAvgPool1d, DistributedAdaptiveAvgPool1d),
    2: (torch.nn.AdaptiveAvgPool2d, DistributedAdaptiveAvgPool2d),
    3: (torch.nn.AdaptiveAvgPool3d, DistributedAdaptiveAvgPool3d),
}
MAX = {
    1: (torch.nn.AdaptiveMaxPool1d, DistributedAdaptiveMaxPool1d),
    2: (torch.nn.AdaptiveMaxPool2d, DistributedAdaptiveMaxPool2d),
    3: (torch.nn.AdaptiveMaxPool3d, DistributedAdaptiveMaxPool3d),
}
LARGEST = {1: 12, 2: 12, 3: 6}
# Multiples of every size of a bin, along every dim.
FACTOR = {num: math.lcm(*range(1, LARGEST[num] + 1)) ** num for num in (1, 2, 3)}


def some_case(random: Random, num_workers: int) -> LayerCase:
    num_spatial = random.randint(1, 3)
    largest = LARGEST[num_spatial]
    given = some_input(random, num_workers, num_spatial, largest)
    # torch's line pools take no None.
    kinds = [1, None] if num_spatial > 1 else [1]
    output_size = tuple(
        random.choice([random.randint(length, largest + 2), *kinds])
        for length in given.partition[-num_spatial:]
    )
    settings = {"output_size": output_size if num_spatial > 1 else output_size[0]}
    return given._replace(settings={"num_spatial": num_spatial, **settings})


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {
        size: draw_cases(seeded(partial(some_case, num_workers=size)), 30) for size in (1, 2, 3, 4)
    }


@ranks(1, 2, 3, 4)
def test_adaptive_avg_pool_is_torchs(world: World, cases: Cases) -> None:
    for case in cases[world.size]:
        num_spatial, output_size = case.settings["num_spatial"], case.settings["output_size"]
        torch_class, twin_class = AVG[num_spatial]
        layer = torch_class(output_size)
        x = integer_valued(case.shape, seed=4)
        reference = sequential(layer, x, FACTOR[num_spatial])
        P_x = grid(world, case.partition)
        twin = twin_class.of(layer, P_x)
        y, x_grad = run(twin, block(x, P_x, case.blocks), shared_block(reference.y_grad, P_x))
        if not P_x.active:
            assert y.numel() == 0
            continue
        assert torch.equal(y, shared_block(reference.y, P_x)), case
        assert torch.equal(x_grad, block(reference.x_grad, P_x, case.blocks)), case


@ranks(1, 2, 3, 4)
def test_adaptive_max_pool_is_torchs(world: World, cases: Cases) -> None:
    """Many inputs are equal: the first one gets the gradient, whichever worker has it."""
    for case in cases[world.size]:
        torch_class, twin_class = MAX[case.settings["num_spatial"]]
        layer = torch_class(case.settings["output_size"])
        x = integer_valued(case.shape, seed=4)
        reference = sequential(layer, x)
        P_x = grid(world, case.partition)
        twin = twin_class.of(layer, P_x)
        y, x_grad = run(twin, block(x, P_x, case.blocks), shared_block(reference.y_grad, P_x))
        if not P_x.active:
            assert y.numel() == 0
            continue
        assert torch.equal(y, shared_block(reference.y, P_x)), case
        assert torch.equal(x_grad, block(reference.x_grad, P_x, case.blocks)), case
        with_indices = torch_class(case.settings["output_size"], return_indices=True)
        _, found = twin_class.of(with_indices, P_x)(block(x, P_x, case.blocks))
        assert torch.equal(found, shared_block(with_indices(x)[1], P_x)), case


@ranks(4, transports=["shm", "c10d", "mpi:openmpi"])
def test_what_follows_a_global_pool_is_done_alike_by_all(world: World) -> None:
    """A head on replicated features, and a loss on each worker: gradients are those of one loss."""
    torch.manual_seed(0)
    head = torch.nn.Linear(3, 2, dtype=torch.float64)
    x = integer_valued((2, 3, 4, 4), seed=1)  # means of 16 are exact
    for layer, twin_class in [
        (torch.nn.AdaptiveAvgPool2d(1), DistributedAdaptiveAvgPool2d),
        (torch.nn.AdaptiveMaxPool2d((1, 1)), DistributedAdaptiveMaxPool2d),
    ]:
        whole = x.clone().requires_grad_()
        head.zero_grad()
        head(layer(whole).flatten(1)).square().mean().backward()
        assert whole.grad is not None
        wanted = [parameter.grad.clone() for parameter in head.parameters()]  # type: ignore[union-attr]
        head.zero_grad()
        P_x = grid(world, (1, 1, 2, 2))
        mine = block(x, P_x).requires_grad_()
        head(twin_class.of(layer, P_x)(mine).flatten(1)).square().mean().backward()
        assert mine.grad is not None
        assert torch.equal(mine.grad, block(whole.grad, P_x))
        for parameter, grad in zip(head.parameters(), wanted, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, grad)


@ranks(4)
def test_a_shared_output_counts_once(world: World) -> None:
    """<F x, y> == <x, F* y>, where a replicated vector is one vector."""
    P_x = grid(world, (1, 1, 2, 2))
    pool = DistributedAdaptiveAvgPool2d(P_x, (1, 4))  # dim 2 is shared, dim 3 is split
    x = integer_valued((1, 2, 4, 8), seed=1, rank=world.rank) * 16
    assert P_x.index is not None
    y_grad = integer_valued((1, 2, 1, 2), seed=2, rank=P_x.index[3]) * 16
    y, x_grad = run(pool, x, y_grad)
    is_first = P_x.index[2] == 0
    products = torch.stack([(y * y_grad).sum() * is_first, (x.detach() * x_grad).sum()])
    world.transport.allreduce(products)
    assert products[0] == products[1] != 0


@ranks(2)
def test_half_precision_is_summed_in_single(world: World) -> None:
    P_x = grid(world, (1, 1, 1, 2))
    x = (torch.arange(3 * 7 * 300) * 7 % 31).view(1, 3, 7, 300).to(torch.bfloat16)
    for output_size in (1, (3, 4)):
        layer = torch.nn.AdaptiveAvgPool2d(output_size)
        got = DistributedAdaptiveAvgPool2d.of(layer, P_x)(block(x, P_x))
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, shared_block(layer(x), P_x))


@ranks(2)
def test_infinite_neighbours_stay_out(world: World) -> None:
    """Bins of different sizes are taken from one array; what is beyond a bin is not multiplied."""
    P_x = grid(world, (1, 1, 2))
    x = torch.arange(7.0).view(1, 1, 7)
    x[..., 3] = torch.inf
    layer = torch.nn.AdaptiveAvgPool1d(5)
    got = DistributedAdaptiveAvgPool1d.of(layer, P_x)(block(x, P_x))
    assert torch.equal(got, block(layer(x), P_x))


@ranks(4)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (1, 1, 4))
    x = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"dim 2 of the output has 3 elements.*4 workers.*axis 2"):
        DistributedAdaptiveAvgPool1d(P_x, 3)(x)
    with pytest.raises(ValueError, match=r"output 3\): dim 2 of the output"):
        DistributedAdaptiveMaxPool1d(P_x, 3)(x)
    with pytest.raises(ValueError, match=r"dim 2 of the input has 3 elements.*4 workers"):
        DistributedAdaptiveAvgPool1d(P_x, 1)(torch.zeros(1, 2, 3 if world.rank == 0 else 0))
    with pytest.raises(ValueError, match="output_size must be a positive number"):
        DistributedAdaptiveAvgPool1d(P_x, 0)
    with pytest.raises(ValueError, match="or 2 of them"):
        DistributedAdaptiveAvgPool2d(grid(world, (1, 1, 2, 2)), (1, 2, 3))
    with pytest.raises(TypeError, match="got AdaptiveMaxPool1d"):
        DistributedAdaptiveAvgPool1d.of(torch.nn.AdaptiveMaxPool1d(1), P_x)
    assert DistributedAdaptiveAvgPool1d(P_x, 1)(x).shape == (1, 2, 1)
