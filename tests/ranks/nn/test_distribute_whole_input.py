"""`distribute`: a worker that gives the whole input, by mistake or by name."""

from __future__ import annotations

import copy

import pytest
import torch
from distribute_models import LeNet, UNet, make_exact
from partition_kit import grid

from kadril.nn.distribution.distribute import distribute
from kadril.testing import integer_valued, ranks
from kadril.world import World


@ranks(2, 4)
def test_the_whole_instead_of_a_block(world: World) -> None:
    """The whole was taken for the blocks of a larger input: every row twice, and no error."""
    x = integer_valued(UNet.shape, seed=1)
    for shape in ((1, 1, 2, world.size // 2), (2, 1, world.size // 2, 1)):
        twin = distribute(make_exact(UNet()), grid(world, shape), x)
        with pytest.raises(ValueError, match=r"twin\.block_of\(x\).*twin\.whole\(x\)"):
            twin(x)
        twin(twin.block_of(x))
        with pytest.raises(ValueError, match="workers gave the same tensor"):
            twin(x)


@ranks(2)
def test_larger_inputs_are_no_mistake(world: World) -> None:
    """Blocks as large as the example are legitimate where they differ, or where one says so."""
    P = grid(world, (1, 1, 2, 1))
    ordinary = make_exact(UNet())
    x = integer_valued(UNet.shape, seed=1)
    twin = distribute(copy.deepcopy(ordinary), P, x)
    other = integer_valued(UNet.shape, seed=2)
    larger = torch.cat([x, other], 2)
    mine = x if world.rank == 0 else other
    assert torch.equal(twin.whole_of(twin(mine)), ordinary(larger))

    twin = distribute(copy.deepcopy(ordinary), P, x)
    twin.takes_equal_blocks = True
    assert torch.equal(twin.whole_of(twin(x)), ordinary(torch.cat([x, x], 2)))


@ranks(2, 4)
def test_the_whole_by_name(world: World) -> None:
    """`whole` cuts, and every worker gets the whole gradient of the input."""
    for kind, shape in ((UNet, (1, 1, 2, world.size // 2)), (LeNet, (world.size, 1, 1, 1))):
        ordinary = make_exact(kind())
        x = integer_valued(kind.shape, seed=1).requires_grad_()
        expected = ordinary(x)
        weight = integer_valued(expected.shape, seed=2)
        (expected * weight).sum().backward()
        twin = distribute(make_exact(kind()), grid(world, shape), x)
        mine = x.detach().clone().requires_grad_()
        found = twin.whole_of(twin.whole(mine))
        (found * weight).sum().backward()
        assert torch.equal(found, expected)
        assert mine.grad is not None
        assert x.grad is not None
        assert torch.equal(mine.grad, x.grad)
        for name, each in ordinary.named_parameters():
            gradient = twin.get_parameter(name).grad
            assert gradient is not None
            assert each.grad is not None
            assert torch.equal(gradient, each.grad)
