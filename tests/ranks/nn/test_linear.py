"""Linear layers: torch's results and gradients, however features, rows and weights are cut.

Inputs, weights and gradients are whole numbers of at most 8: sums of up to 2^46 products are exact
in float64, so everything is compared with `==`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, grid_shapes, random_sizes

from kadril.errors import MismatchError
from kadril.nn.linear import DistributedLinear
from kadril.ops import zero_volume_tensor
from kadril.partition import Partition, balanced_intervals
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World


def ordinary(in_features: int, out_features: int, bias: bool = True) -> torch.nn.Linear:
    layer = torch.nn.Linear(in_features, out_features, bias).double()
    for number, parameter in enumerate(layer.parameters()):
        with torch.no_grad():
            parameter.copy_(integer_valued(parameter.shape, seed=number + 1))
    return layer


def step(
    layer: torch.nn.Linear, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result, the gradient it is given, and the input's gradient, of a sequential layer."""
    x = x.clone().requires_grad_()
    y = layer(x)
    g = integer_valued(y.shape, seed=7)
    y.backward(g)
    assert x.grad is not None
    return y.detach(), g, x.grad


@ranks(1, 2, 3, 4)
def test_copies_are_torchs_on_any_cut(world: World) -> None:
    draw = random.Random(1)
    for num_dims in (1, 2, 3, 4):
        for shape in grid_shapes(num_dims, [world.size]):
            P_x = grid(world, shape)
            size = [draw.randint(4, 6) for _ in shape]
            layer = ordinary(size[-1], draw.randint(4, 7), bias=draw.random() < 0.7)
            x = integer_valued(size, seed=draw.randint(0, 99))
            sizes = random_sizes(size, P_x, draw) if shape[-1] == 1 else None
            twin = DistributedLinear.of(
                ordinary(*layer.weight.shape[::-1], layer.bias is not None), P_x
            )
            expected, g, grad = step(layer, x)
            outs = None if sizes is None else [*sizes[:-1], [expected.shape[-1]]]
            mine = block(x, P_x, sizes).requires_grad_()
            y = twin(mine)
            y.backward(block(g, P_x, outs))
            assert torch.equal(y, block(expected, P_x, outs))
            assert torch.equal(mine.grad, block(grad, P_x, sizes))  # type: ignore[arg-type]
            for parameter, other in zip(twin.parameters(), layer.parameters(), strict=True):
                assert torch.equal(parameter.grad, other.grad)  # type: ignore[arg-type]


def grids(
    world: World, num_out: int, num_in: int, lead: Sequence[int]
) -> tuple[Partition, Partition, Partition]:
    P_x = grid(world, [*lead, num_in])
    P_y = grid(world, [*lead, num_out])
    return P_x, P_y, grid(world, [*lead, num_out, num_in])


@ranks(1, 2, 3, 4)
def test_blocks_of_the_weight(world: World) -> None:
    draw = random.Random(2)
    for lead_length, num_out, num_in in grid_shapes(3, [world.size]):
        lead = [lead_length] if draw.random() < 0.5 else [1, lead_length]
        P_x, P_y, P_w = grids(world, num_out, num_in, lead)
        size = [draw.randint(4, 5) for _ in lead] + [draw.randint(4, 7)]
        layer = ordinary(size[-1], draw.randint(4, 7), bias=draw.random() < 0.7)
        x = integer_valued(size, seed=draw.randint(0, 99))
        twin = DistributedLinear.of(layer, P_x, P_y, P_w)
        sizes = random_sizes(size, P_x, random.Random(3)) if lead_length == 1 else None
        if sizes is not None and 0 in sizes[-1]:
            sizes = None
        expected, g, grad = step(layer, x)
        mine = block(x, P_x, sizes).requires_grad_()
        y = twin(mine)
        assert torch.equal(y, block(expected, P_y)) if P_y.active else y.numel() == 0
        y.backward(block(g, P_y) if P_y.active else torch.zeros_like(y))
        assert P_w.index is not None
        if P_x.active:
            assert torch.equal(mine.grad, block(grad, P_x, sizes))  # type: ignore[arg-type]
        rows = slice(*balanced_intervals(layer.out_features, num_out)[P_w.index[-2]])
        columns = slice(*balanced_intervals(layer.in_features, num_in)[P_w.index[-1]])
        assert torch.equal(twin.weight.grad, layer.weight.grad[rows, columns])  # type: ignore[index, arg-type]
        has_bias = layer.bias is not None and P_w.index[-1] == 0
        assert (twin.bias is not None) == has_bias
        if has_bias:
            assert torch.equal(twin.bias.grad, layer.bias.grad[rows])  # type: ignore[index, arg-type]
        state = twin.state_dict()
        assert state.keys() == layer.state_dict().keys()
        assert all(torch.equal(state[name], each) for name, each in layer.state_dict().items())


@ranks(4, transports=TRANSPORTS)
def test_column_then_row_parallel(world: World) -> None:
    """The halves of a perceptron: one broadcast before, one sum after; with data cut too."""
    P = grid(world, (2, 2))
    first, second = ordinary(5, 7), ordinary(7, 3)
    column = DistributedLinear.column_parallel(P, 5, 7, dtype=torch.float64)
    row = DistributedLinear.row_parallel(P, 7, 3, dtype=torch.float64)
    column.load_state_dict(first.state_dict())
    row.load_state_dict(second.state_dict())
    x = integer_valued((6, 5), seed=1).requires_grad_()
    expected = second(torch.relu(first(x)))
    expected.sum().backward()
    P_x = column.P_x
    assert P_x.shape == (2, 1)
    mine = block(x.detach(), P_x).requires_grad_()
    y = row(torch.relu(column(mine)))
    y.sum().backward()
    if P_x.active:
        assert torch.equal(y, block(expected.detach(), P_x))
        assert torch.equal(mine.grad, block(x.grad, P_x))  # type: ignore[arg-type]
    assert P.index is not None
    rows = slice(*balanced_intervals(7, 2)[P.index[1]])
    assert torch.equal(column.weight.grad, first.weight.grad[rows])  # type: ignore[index, arg-type]
    assert torch.equal(row.weight.grad, second.weight.grad[:, rows])  # type: ignore[index, arg-type]


@ranks(4)
def test_adjoint(world: World) -> None:
    """Without a bias the layer is linear in x."""
    P_x = grid(world, (2, 2))
    layer = DistributedLinear.of(ordinary(4, 6, bias=False), P_x)
    x = integer_valued((2, 2), seed=1, rank=world.rank)
    check_autograd_adjoint(world, layer, x, integer_valued((2, 3), seed=2, rank=world.rank))
    P_x, P_y, P_w = grids(world, 2, 2, [1])
    blocks = DistributedLinear.of(ordinary(4, 6, bias=False), P_x, P_y, P_w)
    x = x if P_x.active else zero_volume_tensor(dtype=torch.float64)
    y = blocks(x).detach()
    check_autograd_adjoint(world, blocks, x, integer_valued(y.shape, seed=2, rank=world.rank))


@ranks(3)
def test_parameters_begin_alike_and_are_saved_whole(world: World) -> None:
    P_x, P_y, P_w = grids(world, 3, 1, [1])
    torch.manual_seed(world.rank)
    layer = DistributedLinear(P_x, 4, 5, P_y=P_y, P_w=P_w)
    copies = DistributedLinear(grid(world, (3, 1)), 4, 5)
    torch.manual_seed(0)
    states = [layer.state_dict(), copies.state_dict()]
    for state in states:
        same = torch.nn.Linear(4, 5)
        assert all(torch.equal(state[name], each) for name, each in same.state_dict().items())
    # From one partition to another, and to none.
    other = DistributedLinear(P_y, 4, 5, P_y=P_x, P_w=grid(world, (1, 3)))
    other.load_state_dict(states[0])
    again = other.state_dict()
    assert all(torch.equal(again[name], each) for name, each in states[0].items())
    torch.nn.Linear(4, 5).load_state_dict(again)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(torch.nn.Linear(5, 5).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({"weight": again["weight"]})
    with pytest.raises(RuntimeError, match=r"Unexpected.*other"):
        layer.load_state_dict({**again, "other": again["bias"]})
    some = grid(world, (2, 1))
    few = DistributedLinear(grid(world, (1, 1)), 4, 5, P_y=grid(world, (1, 2)), P_w=some)
    assert (few.weight is None) == (not some.active)
    assert few.state_dict()["weight"].shape == (5, 4)


@ranks(2)
def test_bad_input(world: World) -> None:
    P_x, P_y, P_w = grids(world, 1, 2, [1])
    layer = DistributedLinear(P_x, 4, 5, P_y=P_y, P_w=P_w)
    with pytest.raises(ValueError, match=r"DistributedLinear\(4, 5\).*6 features"):
        layer(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="too few for 2 workers"):
        DistributedLinear(P_x, 4, 1)
    with pytest.raises(ValueError, match="in_features=1 are too few"):
        DistributedLinear(P_x, 1, 5, P_y=P_y, P_w=P_w)
    with pytest.raises(ValueError, match="need P_w = 1 x 1 x 2"):
        DistributedLinear(P_x, 4, 5, P_y=P_y, P_w=P_x.create_cartesian_topology_partition([2, 1]))
    with pytest.raises(ValueError, match="both P_y"):
        DistributedLinear(P_x, 4, 5, P_y=P_y)
    with pytest.raises(ValueError, match="may differ in the last axis"):
        DistributedLinear(grid(world, (2, 1)), 4, 5, P_y=P_y, P_w=P_w)
    copies = DistributedLinear(P_x, 4, 5)
    with pytest.raises(ValueError, match="axis 1 of 1 x 2"):
        copies(torch.zeros(2, 3))
    with pytest.raises(MismatchError, match="dim 0"):
        copies(torch.zeros(2 + world.rank, 2))
    with pytest.raises(ValueError, match="one axis for each dim"):
        copies(torch.zeros(2, 2, 2))
    assert copies(torch.zeros(2, 2)).shape == (2, 3 - world.rank)


@ranks(3)
def test_input_of_another_dtype_than_the_weight(world: World) -> None:
    """Torch refused it on workers with a weight alone; the one with the output waited for them."""
    P_x, P_w, P_y = grid(world, (1, 2)), grid(world, (1, 2)), grid(world, (1, 1), first=2)
    layer = DistributedLinear(P_x, 4, 3, P_y=P_y, P_w=P_w)
    x = torch.zeros((2, 2), dtype=torch.float64) if P_x.active else zero_volume_tensor()
    with pytest.raises(TypeError, match=r"float64, and the weight on rank 0 is torch\.float32"):
        layer(x)
    assert layer.double()(x).numel() == (6 if world.rank == 2 else 0)
