"""Primitives as modules: each one does what its function does, and can be copied and shown."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from partition_kit import TRANSPORTS, grid

from kadril import ops
from kadril.nn import primitives as nn
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

Function = Callable[[torch.Tensor], torch.Tensor]


def pairs_of(world: World) -> list[tuple[torch.nn.Module, Function]]:
    """Modules, and what they should do, for blocks of 4 x 6 on 2 x 2."""
    P_x, P_y, one = grid(world, (2, 2)), grid(world, (4, 1)), grid(world, (1, 2))
    halo = [(1, 2), (0, -1)]
    return [
        (nn.AllSumReduce(P_x, (1,)), lambda x: ops.all_sum_reduce(x, P_x, (1,))),
        (nn.AllSumReduce(P_x, axes_keep=(1,)), lambda x: ops.all_sum_reduce(x, P_x, (0,))),
        (nn.AllGather(P_x, 1), lambda x: ops.all_gather(x, P_x, (1,))),
        (nn.AllGather(P_x, (0, 1), dim=0), lambda x: ops.all_gather(x, P_x, (0, 1), dim=0)),
        (nn.ReduceScatter(P_x, (0, 1)), lambda x: ops.reduce_scatter(x, P_x, (0, 1))),
        (
            nn.ReduceScatter(P_x, 1, dim=0, sizes=[1, 3]),
            lambda x: ops.reduce_scatter(x, P_x, 1, dim=0, sizes=[1, 3]),
        ),
        (nn.Repartition(P_x, P_y), lambda x: ops.repartition(x, P_x, P_y)),
        (nn.HaloExchange(P_x, halo), lambda x: ops.halo_exchange(x, P_x, halo)),
        (
            nn.HaloExchange(P_x, halo, "replicate"),
            lambda x: ops.halo_exchange(x, P_x, halo, edges="replicate"),
        ),
        (nn.SumReduce(P_x, one), lambda x: ops.sum_reduce(x, P_x, one)),
        (
            nn.SumReduce(P_x, one, transpose_src=True),
            lambda x: ops.sum_reduce(x, P_x, one, transpose_src=True),
        ),
        (nn.Gather(P_x, 3), lambda x: ops.gather(x, P_x, 3)),
        (nn.AllToAll(P_x, 1, 0, 1), lambda x: ops.all_to_all(x, P_x, 1, 0, 1)),
    ]


@ranks(4)
def test_modules_do_what_functions_do(world: World) -> None:
    x = integer_valued((4, 6), seed=1, rank=world.rank)
    for module, function in pairs_of(world):
        got = module(x)
        assert torch.equal(got, function(x)), module
        y = integer_valued(got.shape, seed=2, rank=world.rank)
        check_autograd_adjoint(world, module, x, y)
        assert torch.equal(copy.deepcopy(module)(x), got), "a copy communicates as well"
        assert not module.state_dict()
        assert "2 x 2" in repr(module)
        with pytest.raises(TypeError, match="state_dict"):
            pickle.dumps(module)


@ranks(4, transports=TRANSPORTS)
def test_from_few_to_many(world: World) -> None:
    P_x, one = grid(world, (2, 2)), grid(world, (1, 2))
    nothing = ops.zero_volume_tensor(dtype=torch.float64)
    x = integer_valued((4, 6), seed=1, rank=world.rank)
    given = x if one.active else nothing
    column = integer_valued((4, 6), seed=1, rank=world.rank % 2)
    assert torch.equal(nn.Broadcast(one, P_x)(given), column)
    row = integer_valued((4, 6), seed=1, rank=world.rank // 2)
    assert torch.equal(nn.Broadcast(one, P_x, False, True)(given), row)
    whole = integer_valued((4, 6), seed=1, rank=2)
    blocks = nn.Scatter(P_x, 2, sizes=[[1, 3], None])(x if P_x.rank == 2 else nothing)
    assert torch.equal(nn.Gather(P_x, 2)(blocks), whole if P_x.rank == 2 else blocks[:, :0])
    away = nn.Broadcast(grid(world, (1, 1)), P_x, preserve_batch=False)
    assert away(x if world.rank == 0 else nothing).shape == (4, 6)


@ranks(4)
def test_the_sum_of_six_and_the_like(world: World) -> None:
    """Axes may be given by position; extremes give gradients to their owner alone."""
    P_x = grid(world, (1, 2, 2))
    x = torch.full((7, 5), float(world.rank), requires_grad=True)
    assert nn.AllSumReduce(P_x, (1, 2))(x).unique().tolist() == [6.0]
    for layer, value, owner in [
        (nn.AllMaxReduce(P_x, (1, 2)), 3.0, 3),
        (nn.AllMinReduce(P_x, axes_keep=(0,)), 0.0, 0),
    ]:
        x.grad = None
        y = layer(x)
        assert y.unique().tolist() == [value]
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.unique().tolist() == [4.0 if world.rank == owner else 0.0]
    with pytest.raises(ValueError, match="either axes_reduce or axes_keep"):
        nn.AllSumReduce(P_x)
    with pytest.raises(ValueError, match="no axis 3"):
        nn.AllGather(P_x, (3,))


@ranks(3)
def test_the_end_of_a_network_that_only_some_have(world: World) -> None:
    P_x, one = grid(world, (3, 1)), grid(world, (1, 1))
    model = torch.nn.Sequential(
        nn.SumReduce(P_x, one), nn.ZeroVolumeCorrector(), torch.nn.Flatten(0)
    )
    x = torch.ones(2, 2, requires_grad=True)
    y = model(x)
    assert y.shape == ((4,) if one.active else (1,))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0]] * 2
    # Also where no input wants gradients: backward() may be called.
    ops.correct_zero_volume(ops.zero_volume_tensor(2)).backward()


@ranks(3)
def test_shapes_may_change_from_call_to_call(world: World) -> None:
    """A shape may change on one rank only: what moves is decided by all of them together."""
    P_x, P_y = grid(world, (3, 1)), grid(world, (1, 3))
    layer = nn.Repartition(P_x, P_y)
    for sizes in ([2, 2, 2], [1, 3, 2], [2, 2, 2], [0, 0, 5]):
        whole = integer_valued((sum(sizes), 3), seed=1)
        mine = torch.split(whole, sizes)[world.rank]
        assert torch.equal(layer(mine), whole[:, world.rank : world.rank + 1])
