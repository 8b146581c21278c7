"""Scatter and gather: a tensor on one worker, blocks on all, each other's adjoint."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, nothing, whole

from kadril import ops
from kadril.errors import MismatchError
from kadril.partition import world_partition
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


@ranks(4, transports=TRANSPORTS)
def test_from_any_root_and_back(world: World) -> None:
    x = whole((5, 6, 3), torch.complex128)
    for shape in [(2, 2, 1), (1, 4, 1), (3, 1, 1), (1, 1, 1)]:
        P_x = grid(world, shape)
        for root in range(P_x.size):
            is_root = P_x.rank == root
            given = x if is_root else nothing(x.dtype)
            scatter, gather = (
                partial(each, P_x=P_x, root=root) for each in (ops.scatter, ops.gather)
            )
            blocks = scatter(given)
            assert torch.equal(blocks, block(x, P_x))
            check_autograd_adjoint(world, scatter, given, integer_like(blocks, world))
            got = gather(blocks)
            assert torch.equal(got, x) if is_root else got.numel() == 0
            check_autograd_adjoint(world, gather, blocks, integer_like(got, world))


def integer_like(x: torch.Tensor, world: World) -> torch.Tensor:
    return integer_valued(x.shape, x.dtype, seed=9, rank=world.rank)


@ranks(3)
def test_blocks_of_any_sizes(world: World) -> None:
    order = world_partition(world).create_partition_inclusive([2, 0, 1])
    P_x = order.create_cartesian_topology_partition([1, 3])
    x = whole((2, 9))
    sizes = [None, [0, 8, 1]]
    blocks = ops.scatter(x if P_x.rank == 1 else nothing(), P_x, 1, sizes=sizes)
    assert torch.equal(blocks, block(x, P_x, sizes))
    got = ops.gather(blocks, P_x, 2, preserve_batch=False)
    assert torch.equal(got, x) if P_x.rank == 2 else got.shape == (0,)


@ranks(3)
def test_what_does_not_fit(world: World) -> None:
    """Every rank of the partition raises, also those that could not know by themselves."""
    P_x = grid(world, (3, 1))
    with pytest.raises(ValueError, match=r"rank 2 holds a tensor of shape \[4, 4\]"):
        ops.scatter(torch.zeros(4, 4) if world.rank != 1 else nothing(), P_x)
    with pytest.raises(ValueError, match="dim 0 has 2 elements, too few for 3 workers"):
        ops.scatter(torch.zeros(2, 4) if world.rank == 0 else nothing(), P_x)
    with pytest.raises(ValueError, match="one axis for each dim"):
        ops.scatter(torch.zeros(4) if world.rank == 0 else nothing(), P_x)
    with pytest.raises(ValueError, match="no root 3"):
        ops.scatter(nothing(), P_x, 3)
    with pytest.raises(MismatchError, match="do not fit together"):
        ops.gather(torch.zeros(2, 2 + world.rank), P_x)
    with pytest.raises(ValueError, match=r"sizes \[1, 1\] for dim 0"):
        ops.scatter(torch.zeros(4, 4) if world.rank == 0 else nothing(), P_x, sizes=[[1, 1], None])
    assert ops.gather(torch.zeros(1, 2), P_x).numel() == (6 if world.rank == 0 else 0)
