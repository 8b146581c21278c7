"""Local contrast normalisation and unshared filters on partitions, beside one process.

Inputs and windows are whole numbers or binary fractions in float64, so all sums are exact in any
order. The filters are linear: outputs and gradients are compared with `==`. In the normalisation
a square root and a division of exact numbers follow, rounded once each, alike on every worker:
outputs are equal; gradients are sums of such numbers, see `BOUND`.
"""

from __future__ import annotations

from random import Random

import pytest
import torch
from box_kit import run, seeded, sequential, some_input
from local_layers import FilterEachPosition, NormalizeContrast
from partition_kit import LayerCase, block, draw_cases, grid

import kadril.nn as knn
from kadril.errors import MismatchError
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

Cases = dict[int, list[LayerCase]]

# A gradient of the normalisation is a sum of less than 300 products, rounded 10 times each.
BOUND = 300 * 10 * 2.0**-53
BINARY = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], dtype=torch.float64) / 16


def some_image(random: Random, num_workers: int) -> LayerCase | None:
    given = some_input(random, num_workers, 2, largest=9, unbatched=False)
    return given if given.partition[1] == 1 else None


def some_filters(random: Random, num_workers: int) -> LayerCase | None:
    given = some_image(random, num_workers)
    if given is None:
        return None
    kernel = (random.randint(1, 4), random.randint(1, 4))
    stride = (random.randint(1, 3), random.randint(1, 3))
    padding = (random.randint(0, 2), random.randint(0, 2))
    for dim in (0, 1):
        steps = given.shape[2 + dim] + 2 * padding[dim] - kernel[dim]
        if steps < 0 or steps // stride[dim] + 1 < given.partition[2 + dim]:
            return None
    settings = {"kernel_size": kernel, "stride": stride, "padding": padding}
    return given._replace(settings={**settings, "bias": random.random() < 0.5})


@pytest.fixture(scope="module")
def images() -> Cases:
    from functools import partial

    return {n: draw_cases(seeded(partial(some_image, num_workers=n)), 12) for n in (1, 2, 4)}


@pytest.fixture(scope="module")
def filters() -> Cases:
    from functools import partial

    return {n: draw_cases(seeded(partial(some_filters, num_workers=n)), 20) for n in (1, 2, 4)}


@ranks(1, 2, 4)
def test_local_contrast_is_that_of_one_process(world: World, images: Cases) -> None:
    for case in images[world.size]:
        # A multiple of 16 * 16 * channels: every mean is a whole number, also of the second kind.
        x = integer_valued(case.shape, seed=4) * 256 * case.shape[1] ** 2
        reference = sequential(NormalizeContrast(BINARY), x)
        P_x = grid(world, case.partition)
        twin = knn.LocalContrastNorm2d(P_x, 3, window=BINARY)
        y_grad = block(reference.y_grad, P_x, case.blocks)
        y, x_grad = run(twin, block(x, P_x, case.blocks), y_grad)
        if not P_x.active:
            assert y.numel() == 0
            continue
        assert torch.equal(y, block(reference.y, P_x, case.blocks)), case
        expected = block(reference.x_grad, P_x, case.blocks)
        scale = float(reference.x_grad.abs().max())
        assert x_grad.numel() == 0 or float((x_grad - expected).abs().max()) <= BOUND * scale, case


@ranks(4)
def test_windows_of_the_contrast_reach_over_several_workers(world: World) -> None:
    P_x = grid(world, (1, 1, 4, 1))
    x = torch.linspace(-1, 1, 2 * 3 * 6 * 5, dtype=torch.float64).sin().view(2, 3, 6, 5)
    twin = knn.LocalContrastNorm2d(P_x, (7, 3))
    expected = NormalizeContrast(twin.window)(x)
    # 21 products and 3 channels in each mean, twice.
    assert float((twin(block(x, P_x)) - block(expected, P_x)).abs().max()) <= 500 * 2.0**-53


@ranks(2)
def test_derivatives_of_the_contrast_are_adjoint(world: World) -> None:
    """<J v, w> == <v, J* w> for the derivative J at a point; J v is the gradient of <J* w, v>."""
    P_x = grid(world, (1, 1, 1, 2))
    twin = knn.LocalContrastNorm2d(P_x, 3)
    point = torch.rand(1, 2, 5, 3, dtype=torch.float64, generator=torch.manual_seed(world.rank))

    def derivative(v: torch.Tensor) -> torch.Tensor:
        x = point.clone().requires_grad_()
        w = torch.zeros_like(x).requires_grad_()
        (back,) = torch.autograd.grad(twin(x), x, w, create_graph=True)
        (found,) = torch.autograd.grad(back, w, v, create_graph=True)
        return found

    v, w = integer_valued(point.shape, seed=1), integer_valued(point.shape, seed=2)
    check_autograd_adjoint(world, derivative, v, w, exact=False, bound=BOUND)


@ranks(1, 2, 4)
def test_each_position_has_its_filters(world: World, filters: Cases) -> None:
    for case in filters[world.size]:
        P_x = grid(world, case.partition)
        channels, *size = case.shape[1:]
        twin = knn.LocallyConnected2d(
            P_x, channels, 3, input_size=size, dtype=torch.float64, **case.settings
        )
        whole = {
            name: integer_valued(value.shape, seed=5) for name, value in twin.state_dict().items()
        }
        twin.load_state_dict(whole)
        for value in whole.values():
            value.requires_grad_()
        settings = {name: case.settings[name] for name in ("stride", "padding")}
        x = integer_valued(case.shape, seed=4)
        layer = FilterEachPosition(whole["weight"], whole.get("bias"), **settings)
        reference = sequential(layer, x)
        y, x_grad = run(twin, block(x, P_x, case.blocks), block(reference.y_grad, P_x))
        assert all(torch.equal(twin.state_dict()[name], whole[name]) for name in whole)
        if not P_x.active:
            assert y.numel() == 0
            continue
        assert torch.equal(y, block(reference.y, P_x)), case
        assert torch.equal(x_grad, block(reference.x_grad, P_x, case.blocks)), case
        for name, value in whole.items():
            assert value.grad is not None
            mine = getattr(twin, name).grad
            assert torch.equal(mine, twin._block(value.grad)), case


@ranks(1, 2, 3, 4)
def test_filters_and_their_adjoint(world: World) -> None:
    P_x = grid(world, (1, 1, world.size, 1))
    twin = knn.LocallyConnected2d(P_x, 2, 3, 3, (9, 6), bias=False, dtype=torch.float64)
    with torch.no_grad():
        twin.weight.copy_(integer_valued(twin.weight.shape, seed=7, rank=world.rank))
    x = block(integer_valued((2, 2, 9, 6), seed=1), P_x)
    y = block(integer_valued((2, 3, 7, 4), seed=2), P_x)
    check_autograd_adjoint(world, twin, x, y)


@ranks(2)
def test_bad_local_layers(world: World) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    with pytest.raises(ValueError, match="odd sizes"):
        knn.LocalContrastNorm2d(P_x, 4)
    with pytest.raises(ValueError, match=r"window has shape \[3, 3\].*says \[5, 5\]"):
        knn.LocalContrastNorm2d(P_x, 5, window=BINARY)
    with pytest.raises(ValueError, match="one for channels must have length 1"):
        knn.LocalContrastNorm2d(grid(world, (1, 2, 1, 1)), 3)
    with pytest.raises(ValueError, match="one for channels must have length 1"):
        knn.LocallyConnected2d(grid(world, (1, 2, 1, 1)), 2, 2, 3, 8)
    with pytest.raises(ValueError, match=r"dim 2 of the output has 1 elements.*2 workers"):
        knn.LocallyConnected2d(P_x, 1, 1, 4, 4)
    with pytest.raises(ValueError, match="stride is 0 x 0"):
        knn.LocallyConnected2d(P_x, 1, 1, 4, 4, stride=0)
    layer = knn.LocallyConnected2d(P_x, 1, 1, 3, 8, what="stem")
    with pytest.raises(ValueError, match=r"stem: the input has 1 channels of 6 x 8.*8 x 8"):
        layer(torch.zeros(1, 1, 3, 8))
    with pytest.raises(MismatchError, match="dim 3"):
        layer(torch.zeros(1, 1, 4, 8 + world.rank))
    assert layer(torch.zeros(0, 1, 4, 8)).shape == (0, 1, 3, 6)
    state = layer.state_dict()
    state["weight"] = state["weight"][:4]
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(state)


@ranks(1, 2, 4)
def test_the_adjoint_of_an_exchange_can_be_called(world: World) -> None:
    """The adjoint is an operator of its own as well, whose gradient is the exchange."""
    from kadril.ops.halo import HaloExchanger, widen

    P_x = grid(world, (1, world.size))
    for edges in ("zeros", "circular", "reflect"):
        exchange = HaloExchanger(P_x, [widen(1, 1), widen(2, 1)], edges=edges)
        sizes = [3 + position for position in range(world.size)]
        shapes = [(4, size) for size in sizes]
        x = integer_valued(shapes[world.rank], seed=1, rank=world.rank)
        y = integer_valued(exchange(x).shape, seed=2, rank=world.rank)
        with_graph = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(exchange(with_graph), with_graph, y)
        y.requires_grad_()
        back = exchange.adjoint(y, shapes)
        assert torch.equal(back, expected)
        (again,) = torch.autograd.grad(back, y, x)
        assert torch.equal(again, exchange(x))
        if world.size > 1:
            wrong = y.detach() if world.rank else y.detach()[:-1]
            with pytest.raises(ValueError, match="rank 0 gives a tensor of shape"):
                exchange.adjoint(wrong, shapes)
            assert torch.equal(exchange.adjoint(y.detach(), shapes), expected)
            # Others know their shapes by now, and do not tell them again.
            with pytest.raises(MismatchError, match="adjoint of HaloExchange"):
                exchange.adjoint(wrong, shapes)


@ranks(1, 2, 4)
def test_ordinary_ones_are_distributed(world: World) -> None:
    """Filters and outputs are whole numbers: what follows the normalisation is exact too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        knn.LocallyConnected2d(None, 2, 3, 3, (9, 6), stride=(2, 1), dtype=torch.float64),
        knn.LocalContrastNorm2d(None, 3, window=BINARY),
    )
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(integer_valued(value.shape, seed=3))
    x, y_grad = integer_valued((2, 2, 9, 6), seed=1), integer_valued((2, 3, 4, 4), seed=2)
    filtered = FilterEachPosition(model[0].weight, model[0].bias, (2, 1))(x)
    expected = NormalizeContrast(BINARY)(filtered).detach()
    y = model(x)
    bound = BOUND * float(expected.abs().max())
    assert float((y.detach() - expected).abs().max()) <= bound
    expected_grads = torch.autograd.grad(y, list(model.parameters()), y_grad)
    P_x = grid(world, (1, 1, world.size, 1))
    twin = knn.distribute(model, P_x, x)
    got = twin(block(x, P_x))
    assert float((got.detach() - block(expected, P_x)).abs().max()) <= bound
    got.backward(block(y_grad, P_x))
    for value, gradient in zip(twin.parameters(), expected_grads, strict=True):
        assert value.grad is not None
        scale = float(gradient.abs().max())
        assert float((value.grad - gradient).abs().max()) <= BOUND * scale
    assert twin.state_dict().keys() == model.state_dict().keys()
    model.load_state_dict(twin.state_dict())


@ranks(2)
def test_a_layer_on_a_partition_is_not_distributed_again(world: World) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    # Tracing comes first, and cannot exchange halos of an example without data.
    with pytest.raises(knn.DistributeError, match="cannot distribute DistributedLocalContrast"):
        knn.distribute(knn.LocalContrastNorm2d(P_x, 3), P_x, torch.zeros(1, 1, 4, 4))
