"""Max and min over workers: the values of torch, and gradients to the owner alone."""

from __future__ import annotations

import math

import pytest
import torch
from partition_kit import TRANSPORTS, grid, nothing

from kadril import ops
from kadril.errors import UnsupportedError
from kadril.testing import integer_valued, ranks
from kadril.world import World


@ranks(1, 4, transports=TRANSPORTS)
def test_gradients_go_to_the_first_owner(world: World) -> None:
    """Values from -8 to 8 on four ranks: there are many ties."""
    P_x = grid(world, (2, 2) if world.size == 4 else (1, 1))
    lines = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]} if world.size == 4 else {0: [0]}
    everyones = [integer_valued((6, 5), seed=1, rank=rank) for rank in range(world.size)]
    grads = [integer_valued((6, 5), seed=2, rank=rank) for rank in range(world.size)]
    line = lines[world.rank]
    for function, reduce in [
        (ops.all_max_reduce, torch.max),
        (ops.all_min_reduce, torch.min),
    ]:
        x = everyones[world.rank].clone().requires_grad_()
        y = function(x, P_x, (1,))
        stacked = torch.stack([everyones[rank] for rank in line])
        values = reduce(stacked, dim=0).values
        assert torch.equal(y, values)
        y.backward(grads[world.rank])
        owners = torch.stack([stacked[place] == values for place in range(len(line))])
        first = owners.to(torch.int8).argmax(0)  # the first of equals
        total = sum(grads[rank] for rank in line)
        assert x.grad is not None
        assert torch.equal(x.grad, torch.where(first == line.index(world.rank), total, 0.0))


@ranks(3)
def test_values_that_are_no_ordinary_numbers(world: World) -> None:
    P_x = grid(world, (3,))
    x = torch.tensor(
        [
            [math.nan, 1.0, -math.inf],
            [5.0, math.inf, -math.inf],
            [math.nan, 2.0, -math.inf],
        ]
    )[world.rank].requires_grad_()
    y = ops.all_max_reduce(x, P_x, (0,))
    assert y[0].isnan()
    assert y[1:].tolist() == [math.inf, -math.inf]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0, 0.0, 3.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]][world.rank]
    scalar = ops.all_min_reduce(torch.tensor(float(world.rank)), P_x, (0,))
    assert scalar.shape == ()
    assert scalar.item() == 0.0


@ranks(3)
def test_dtypes_and_workers(world: World) -> None:
    P_x = grid(world, (2,))
    mine = torch.tensor([world.rank, -world.rank]) if P_x.active else nothing(torch.int64)
    got = ops.all_max_reduce(mine, P_x, (0,))
    assert got.tolist() == ([1, 0] if P_x.active else [])
    assert not got.requires_grad
    if P_x.active:
        with pytest.raises(UnsupportedError, match="complex"):
            ops.all_max_reduce(torch.zeros(2, dtype=torch.complex64), P_x, (0,))
        # Only one of them wants gradients: the other one is in the backward pass all the same.
        x = torch.tensor([float(world.rank)], requires_grad=world.rank == 0)
        ops.all_min_reduce(x, P_x, (0,)).sum().backward()
        assert (x.grad is None) if world.rank else (x.grad.tolist() == [2.0])  # type: ignore[union-attr]
