"""`distribute`: whole models, split by batch and space, give the ordinary result and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from distribute_models import LeNet, ResNet, UNet, check_same, make_exact
from partition_kit import grid
from torch import nn

from kadril.nn.distribution.distribute import block_of, distribute, whole_of
from kadril.testing import integer_valued, ranks
from kadril.world import World

PARTITIONS = {
    1: [(1, 1, 1, 1)],
    2: [(1, 1, 2, 1), (2, 1, 1, 1)],
    4: [(1, 1, 2, 2), (2, 1, 1, 2), (1, 1, 4, 1)],
    6: [(1, 1, 2, 3), (2, 1, 1, 3)],
}

# Norms divide, so numbers are rounded: sums of fewer than 2**12 products, one after the other in
# fewer than 2**5 layers, with eps = 2**-53 each, and cancellation in the norms' gradients (factors
# of up to 2**4 here).
BOUND = 2.0 ** (12 + 5 + 4 - 53)


@ranks(1, 2, 4)
def test_models_without_rounding(world: World) -> None:
    """Whole numbers all along: results and gradients are equal, not close."""
    for kind in (LeNet, UNet):
        model = make_exact(kind())
        x = integer_valued(kind.shape, seed=5)
        for shape in PARTITIONS[world.size]:
            check_same(model, grid(world, shape), x)


@ranks(2, transports=["c10d", "mpi:openmpi"])
def test_models_on_other_transports(world: World) -> None:
    for kind in (LeNet, UNet):
        x = integer_valued(kind.shape, seed=5)
        check_same(make_exact(kind()), grid(world, (1, 1, 1, 2)), x)


@pytest.mark.long
@ranks(6)
def test_models_on_six_ranks(world: World) -> None:
    for kind, shape in ((LeNet, (1, 1, 2, 3)), (UNet, (1, 1, 3, 2)), (LeNet, (2, 1, 1, 3))):
        x = integer_valued(kind.shape, seed=5)
        check_same(make_exact(kind()), grid(world, shape), x)


@ranks(1, 2, 4)
def test_a_model_with_norms(world: World) -> None:
    torch.manual_seed(0)
    model = ResNet().double()
    x = torch.randn(ResNet.shape, dtype=torch.float64)
    for shape in PARTITIONS[world.size]:
        check_same(model, grid(world, shape), x, BOUND)
        check_same(model.eval(), grid(world, shape), x, BOUND)
        model.train()


@ranks(4)
def test_channels_may_be_split(world: World) -> None:
    torch.manual_seed(0)
    x = torch.randn(ResNet.shape, dtype=torch.float64)
    check_same(ResNet().double(), grid(world, (1, 2, 2, 1)), x, BOUND)


@ranks(4)
def test_state_goes_anywhere(world: World) -> None:
    """Saved on four workers, loaded on two, on one, and into the ordinary model."""
    torch.manual_seed(world.rank)  # workers begin apart; the first one's parameters are taken
    model = ResNet()
    twin = distribute(model, grid(world, (1, 1, 2, 2)), torch.empty(ResNet.shape))
    for theirs, mine in zip(twin.parameters(), model.parameters(), strict=True):
        assert theirs is mine
    saved = copy.deepcopy(twin.state_dict())
    ordinary = ResNet()
    assert list(saved) == list(ordinary.state_dict())
    ordinary.load_state_dict(saved)
    x = torch.randn(ResNet.shape, generator=torch.Generator().manual_seed(1))
    expected = ordinary.eval()(x)
    for shape in ((1, 1, 2, 2), (2, 1, 1, 1), (1, 1, 1, 1)):
        other = distribute(ResNet(), grid(world, shape), x)
        other.load_state_dict(saved)
        y = other.eval()(other.block_of(x))
        if other.P_x.active:
            torch.testing.assert_close(other.whole_of(y), expected, rtol=1e-5, atol=1e-5)


@ranks(4)
def test_blocks_and_batches_of_other_sizes(world: World) -> None:
    """Sizes are asked for at every call; those of the example are not written down."""
    P = grid(world, (2, 1, 2, 1))
    example = torch.empty(UNet.shape, dtype=torch.float64, device="meta")
    twin = distribute(make_exact(UNet()), P, example)
    ordinary = make_exact(UNet())
    for shape in ((5, 1, 11, 13), (2, 1, 17, 12)):
        x = integer_valued(shape, seed=7)
        assert torch.equal(whole_of(twin(block_of(x, P)), twin.P_y), ordinary(x))
    rows = ([0, 8], [8, 11])[P.index[2]] if P.index else []
    batch = ([0, 1], [1, 4])[P.index[0]] if P.index else []
    x = integer_valued((4, 1, 11, 13), seed=8)
    block = x[slice(*batch), :, slice(*rows)]  # far from balanced
    assert torch.equal(whole_of(twin(block), twin.P_y), ordinary(x))


@ranks(3)
def test_ranks_outside_of_the_partition(world: World) -> None:
    P = grid(world, (1, 1, 2, 1))
    x = integer_valued(UNet.shape, seed=5)
    check_same(make_exact(UNet()), P, x)
    twin = distribute(nn.Sequential(nn.Flatten(), nn.Linear(143, 2).double()), P, x)
    y = twin(twin.block_of(x))
    assert y.shape == ((2, 2) if P.active else (0,))
