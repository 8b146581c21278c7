"""Gradients of gradients through layers, beside those of one process.

For each layer: the loss is sum sin y, and the penalty the square of its gradient; what comes back
from the penalty has second derivatives of the layer in it. All numbers are of float64 and about 1.
A sum of n of them, of which each was rounded k times, is off by n k 2^-53 at most; n is below 1000
and k below 100 for what is here.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from local_layers import FilterEachPosition, NormalizeContrast
from partition_kit import block, grid
from torch import nn

import kadril.nn as knn
from kadril import ops
from kadril.nn import primitives
from kadril.nn.distribution.replicas import Cutter
from kadril.ops.linear_operator import DoneFunction
from kadril.partition import Partition, world_partition
from kadril.testing import ranks
from kadril.world import World

BOUND = 1000 * 100 * 2.0**-53

Module = Callable[..., torch.Tensor]


class LayerAndTwin(NamedTuple):
    """A layer and its twin.

    Attributes:
        twin: on blocks.
        layer: of the whole.
        sizes: of the whole input.
        P_x: where it lies.
        target: of a loss, whole.
        makes_one: whether the result is one replicated number.
    """

    twin: Module
    layer: Module
    sizes: tuple[int, ...]
    P_x: Partition
    target: torch.Tensor | None = None
    makes_one: bool = False


def numbers(sizes: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    """The same on all ranks, from 0.1 to 0.9, no two alike."""
    random = torch.Generator().manual_seed(seed)
    return 0.1 + 0.8 * torch.rand(sizes, dtype=torch.float64, generator=random)


def spatial_cases(world: World, num_spatial: int) -> Iterator[tuple[str, LayerAndTwin]]:
    """Layers on rows that are split."""
    d = f"{num_spatial}d"
    rows = grid(world, (1, 1, 2, *[1] * (num_spatial - 1)))
    channels = grid(world, (1, 2, *[1] * num_spatial))
    one = grid(world, (1, 1, *[1] * num_spatial))
    sizes = (2, 2, 8, *[4] * (num_spatial - 1))
    conv = getattr(nn, f"Conv{d}")(2, 2, 3, padding=1).double()
    up = getattr(nn, f"ConvTranspose{d}")(2, 2, 3, stride=2, padding=1).double()
    for form in ("", "Feature"):
        of = getattr(knn, f"Distributed{form}Conv{d}").of
        for overlap in (False, True):
            yield (
                f"Distributed{form}Conv{d}",
                LayerAndTwin(of(conv, rows, overlap=overlap), conv, sizes, rows),
            )
    for form, parts in (("Channel", (channels, one, channels)), ("General", (rows, rows, rows))):
        name = f"Distributed{form}Conv{d}"
        yield name, LayerAndTwin(getattr(knn, name).of(conv, *parts), conv, sizes, parts[0])
    yield (
        f"DistributedConvTranspose{d}",
        LayerAndTwin(getattr(knn, f"DistributedConvTranspose{d}").of(up, rows), up, sizes, rows),
    )
    norm = getattr(nn, f"BatchNorm{d}")(2).double()
    for name in ("DistributedBatchNorm", f"DistributedBatchNorm{d}"):
        yield name, LayerAndTwin(getattr(knn, name).of(norm, rows), norm, sizes, rows)
    for kind, settings in (
        ("MaxPool", (3, 2, 1)),
        ("AvgPool", (3, 2, 1)),
        ("AdaptiveAvgPool", (3,)),
        ("AdaptiveMaxPool", (3,)),
    ):
        layer = getattr(nn, f"{kind}{d}")(*settings)
        name = f"Distributed{kind}{d}"
        yield name, LayerAndTwin(getattr(knn, name)(rows, *settings), layer, sizes, rows)
    mode = ("linear", "bilinear", "trilinear")[num_spatial - 1]
    scaled = nn.Upsample(scale_factor=2, mode=mode)
    yield (
        "DistributedUpsample",
        LayerAndTwin(knn.DistributedUpsample(rows, scale_factor=2, mode=mode), scaled, sizes, rows),
    )
    yield (
        "interpolate",
        LayerAndTwin(
            lambda x: knn.interpolate(x, rows, scale_factor=2, mode=mode), scaled, sizes, rows
        ),
    )


def plain_cases(world: World) -> Iterator[tuple[str, LayerAndTwin]]:
    """Layers on matrices and on sequences."""
    batch, features = grid(world, (2, 1)), grid(world, (1, 2))
    one = grid(world, (1, 1))
    rows = grid(world, (1, 1, 2))
    linear = nn.Linear(4, 3).double()
    yield (
        "DistributedLinear",
        LayerAndTwin(knn.DistributedLinear.of(linear, batch), linear, (6, 4), batch),
    )
    yield (
        "DistributedLinear",
        LayerAndTwin(
            knn.DistributedLinear.of(linear, features, one, features), linear, (6, 4), features
        ),
    )
    group = nn.GroupNorm(2, 4).double()
    yield (
        "DistributedGroupNorm",
        LayerAndTwin(knn.DistributedGroupNorm.of(group, rows), group, (2, 4, 6), rows),
    )
    norm = nn.LayerNorm([4, 6]).double()
    yield (
        "DistributedLayerNorm",
        LayerAndTwin(knn.DistributedLayerNorm.of(norm, rows), norm, (2, 4, 6), rows),
    )
    rms = nn.RMSNorm([4, 6]).double()
    yield (
        "DistributedRMSNorm",
        LayerAndTwin(knn.DistributedRMSNorm.of(rms, rows), rms, (2, 4, 6), rows),
    )
    image, lines = (2, 2, 6, 4), grid(world, (1, 1, 2, 1))
    contrast = knn.DistributedLocalContrastNorm2d(lines, 3)
    yield (
        "DistributedLocalContrastNorm2d",
        LayerAndTwin(contrast, NormalizeContrast(contrast.window), image, lines),
    )
    filters = knn.DistributedLocallyConnected2d(lines, 2, 3, 3, (6, 4), dtype=torch.float64)
    whole = filters.state_dict()
    yield (
        "DistributedLocallyConnected2d",
        LayerAndTwin(filters, FilterEachPosition(whole["weight"], whole["bias"]), image, lines),
    )
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv1d(3, 2, 3)).double()
    for name in ("distribute", "DistributedModel"):
        twin = knn.distribute(model, rows, torch.zeros(2, 2, 8, dtype=torch.float64))
        yield name, LayerAndTwin(twin, model, (2, 2, 8), rows)
    yield (
        "join",
        LayerAndTwin(
            lambda x: (knn.whole_of(x, rows).sin() * numbers((2, 2, 8), 5)).sum(),
            lambda x: (x.sin() * numbers((2, 2, 8), 5)).sum(),
            (2, 2, 8),
            rows,
            makes_one=True,
        ),
    )


def loss_cases(world: World) -> Iterator[tuple[str, LayerAndTwin]]:
    """One number, the same on all workers; classes are split."""
    P_x = grid(world, (1, 2))
    sizes = (3, 4)
    amounts = numbers(sizes, seed=2)
    classes = torch.tensor([3, 0, 2])
    for name in (
        *("L1", "MSE", "SmoothL1", "Huber", "PoissonNLL", "BCE", "BCEWithLogits", "KLDiv"),
        *("CrossEntropy", "NLL"),
    ):
        target = classes if name in ("CrossEntropy", "NLL") else amounts
        layer = getattr(nn, f"{name}Loss")(reduction="sum")
        twin = getattr(knn, f"Distributed{name}Loss").of(layer, P_x)
        yield (
            f"Distributed{name}Loss",
            LayerAndTwin(twin, layer, sizes, P_x, target, makes_one=True),
        )


def cases(world: World) -> Iterator[tuple[str, LayerAndTwin]]:
    """All, by name; layers begin with the same numbers on all ranks."""
    torch.manual_seed(2)
    for num_spatial in (1, 2, 3):
        yield from spatial_cases(world, num_spatial)
    yield from plain_cases(world)
    yield from loss_cases(world)


def second(
    call: Module, x: torch.Tensor, parameters: list[torch.Tensor], *, makes_one: bool
) -> list[torch.Tensor]:
    """The gradient of the loss, and gradients of the penalty."""
    y = call(x)
    loss = y.square() if makes_one else y.sin().sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    wanted = [x, *parameters]
    found = torch.autograd.grad(first.square().sum(), wanted, materialize_grads=True)
    return [first.detach(), *found]


def check_near(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    assert got.shape == expected.shape, name
    if got.numel():
        scale = max(1.0, float(expected.abs().max()))
        assert float((got - expected).abs().max()) <= BOUND * scale, name


@ranks(2)
def test_layers(world: World) -> None:
    """Second derivatives of layers were refused by name, or by torch."""
    for name, (twin, layer, sizes, P_x, target, makes_one) in cases(world):
        whole = numbers(sizes).requires_grad_()
        mine = block(whole.detach(), P_x).requires_grad_()
        call, reference = twin, layer
        if target is not None:
            targets = block(target, P_x)
            call, reference = with_target(twin, targets), with_target(layer, target)
        parameters = list(layer.parameters()) if isinstance(layer, nn.Module) else []
        shared = [p for p in parameters if any(p is q for q in parameters_of(twin))]
        expected = second(reference, whole, parameters, makes_one=makes_one)
        got = second(call, mine, shared, makes_one=makes_one)
        for one, other in zip(got[:2], expected[:2], strict=True):
            check_near(one, block(other, P_x).reshape(one.shape), name)
        of_parameters = dict(zip(map(id, parameters), expected[2:], strict=True))
        for parameter, one in zip(shared, got[2:], strict=True):
            check_near(one, of_parameters[id(parameter)], f"{name}, parameters")


def with_target(call: Module, target: torch.Tensor) -> Module:
    return lambda x: call(x, target)


def parameters_of(twin: Module) -> list[torch.Tensor]:
    return list(twin.parameters()) if isinstance(twin, nn.Module) else []


DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")


@ranks(2)
def test_dropouts(world: World) -> None:
    """Dropouts draw their own numbers; y = m x + c with constants of a call."""
    for kind in DROPOUTS:
        num_spatial = int(kind[-2]) if kind.endswith("d") else 1
        P_x = grid(world, (1, 1, 2, *[1] * (num_spatial - 1)))
        layer: Any = getattr(knn, f"Distributed{kind}")(P_x, 0.5, seed=3)
        x = block(numbers((2, 8, 4, *[2] * (num_spatial - 1))), P_x).requires_grad_()
        y = layer(x)
        (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        rest = (y - slope * x).detach()
        got = second(lambda x, y=y: y, x, [], makes_one=False)
        expected = second(lambda x, m=slope, c=rest: m * x + c, x, [], makes_one=False)
        for one, other in zip(got, expected, strict=True):
            check_near(one, other, kind)


@ranks(2)
def test_embedding(world: World) -> None:
    """Every worker has a copy of the table, and the penalty is one of all."""
    P_x = grid(world, (2,))
    torch.manual_seed(6)
    words = torch.tensor([3, 0, 3, 1])
    table = nn.Embedding(5, 2).double()

    def penalty(embedding: Module, ids: torch.Tensor) -> torch.Tensor:
        loss = (embedding(ids).sin()).sum()
        (first,) = torch.autograd.grad(loss, table.weight, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), table.weight)
        return found

    twin = knn.DistributedEmbedding.of(table, P_x)
    assert any(table.weight is p for p in twin.parameters())
    check_near(penalty(twin, block(words, P_x)), penalty(table, words), "DistributedEmbedding")


@ranks(2)
def test_cut_replicas(world: World) -> None:
    """Cutting was differentiated by hand, and its adjoint by torch: each rank had its own part."""
    P_x = grid(world, (2, 1))
    whole = numbers((4, 2)).requires_grad_()
    group = P_x.group
    got = second(lambda x: ops.total(Cutter(P_x)(x).sin().sum(), group), whole, [], makes_one=True)
    expected = second(lambda x: x.sin().sum(), whole, [], makes_one=True)
    for one, other in zip(got, expected, strict=True):
        check_near(one, other, "cut")


class Reduced(nn.Module):
    """A function of a sequence of which rows are split."""

    def __init__(self, function: Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.function(x.square())
        return found


REDUCTIONS: dict[str, Module] = {
    "amax": lambda x: x.amax(2),
    "sum": lambda x: x.sum(2, keepdim=True) * x,
    "var": lambda x: x.var(2),
    "norm": lambda x: (x + 1).norm(dim=2),
    "prod": lambda x: (x + 0.5).prod(2),
    "logsumexp": lambda x: x.logsumexp(2),
    "softmax": lambda x: x.softmax(2),
    "cumsum": lambda x: x.cumsum(2),
    "einsum": lambda x: torch.einsum("nct,ndt->ncd", x, x),
    "roll": lambda x: x.roll(1, 2) * x,
    "mse": lambda x: nn.functional.mse_loss(x, torch.ones_like(x)),
}


@ranks(2)
def test_functions_in_distributed_models(world: World) -> None:
    """The second derivative of a maximum that lies on two workers had only this one's part."""
    rows = grid(world, (1, 1, 2))
    tied = numbers((2, 2, 6))
    tied[:, :, 0], tied[:, :, 5] = 3.0, -3.0  # the function is of the square
    for name, function in REDUCTIONS.items():
        model = Reduced(function)
        whole = tied.clone().requires_grad_()
        twin = knn.distribute(model, rows, whole.detach())
        mine = block(whole.detach(), rows).requires_grad_()
        got = second(twin, mine, [], makes_one=False)
        expected = second(model, whole, [], makes_one=False)
        for one, other in zip(got, expected, strict=True):
            check_near(one, block(other, rows), name)


@ranks(2)
def test_every_public_layer_has_a_case(world: World) -> None:
    """A new one is not to come without its second derivative."""
    covered = {name for name, _ in cases(world)}
    covered |= {f"Distributed{kind}" for kind in DROPOUTS} | {"DistributedEmbedding"}
    covered |= set(primitives.__all__)  # modules of what tests/ranks/ops has
    covered |= {"DistributeError", "draw"}  # no tensors
    covered |= {"block_of"}  # a copy of a part
    # A layer has several names: torch's and DistDL's.
    objects = {getattr(knn, name, None) for name in covered}
    assert [name for name in knn.__all__ if getattr(knn, name) not in objects] == []


def autograd_functions() -> list[Any]:
    """All that `kadril.ops` and `kadril.nn` have."""
    modules = [
        importlib.import_module(found.name)
        for package in (ops, knn)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    found = {
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, torch.autograd.Function)
        and each.__module__ == module.__name__
    }
    return sorted(found, key=lambda each: each.__name__)


def third_order(call: Module, x: torch.Tensor) -> None:
    level = call(x)
    for _ in range(3):
        (level,) = torch.autograd.grad(level.sin().sum(), x, create_graph=True)


@ranks(2)
def test_every_autograd_function_is_differentiated_again(world: World) -> None:
    """One whose backward has no case here, or cannot be recorded, is found out."""
    P_x, rows = grid(world, (2,)), grid(world, (1, 1, 2))
    reached = set()

    def watched(function: Any) -> Any:
        backward = function.backward

        def call(ctx: Any, *grads: torch.Tensor) -> Any:
            if torch.is_grad_enabled():
                reached.add(function)
            return backward(ctx, *grads)

        return staticmethod(call)

    functions = autograd_functions()
    if world.transport.shared_memory is None:  # where the shortest way is
        functions.remove(DoneFunction)
    with contextlib.ExitStack() as stack:
        for function in functions:
            stack.enter_context(mock.patch.object(function, "backward", watched(function)))
        block = numbers((2, 2, 4)).requires_grad_()
        conv = knn.DistributedConv1d(rows, 2, 2, 3, padding=1, dtype=torch.float64, overlap=True)
        third_order(lambda _: conv(block), conv.weight)
        third_order(knn.DistributedBatchNorm1d(rows, 2, dtype=torch.float64), block)
        halo = knn.HaloExchange(rows, [(0, 0), (0, 0), (1, 1)])
        for _ in range(3):  # the shortest way is that of a call like the one before
            third_order(halo, block)
        classes = torch.tensor([1, 0, 1])
        third_order(
            with_target(knn.DistributedCrossEntropyLoss(grid(world, (1, 2))), classes),
            numbers((3, 1)).requires_grad_(),
        )
        largest = Reduced(lambda x: x.amax(2))
        third_order(knn.distribute(largest, rows, numbers((2, 2, 8))), block)
        third_order(ops.correct_zero_volume, numbers((2,)).requires_grad_())
        table = knn.DistributedEmbedding(P_x, 3, 2, scale_grad_by_freq=True, dtype=torch.float64)
        third_order(lambda _: table(torch.tensor([0, 2])), table.weight)
    assert functions
    assert [each for each in functions if each not in reached] == []


class Coordinates(nn.Module):
    """u(x, y): a network of coordinates, as channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 8, 1),
            nn.Tanh(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 1, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate."""
        return self.layers(x)


def residual_of(net: Module, x: torch.Tensor) -> torch.Tensor:
    """Mean square of the Laplacian, as of a physics-informed network; a sum of squares here."""
    u = net(x)
    (slopes,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    laplacian = torch.zeros_like(u)
    for axis in range(2):
        (bends,) = torch.autograd.grad(slopes[:, axis].sum(), x, create_graph=True)
        laplacian = laplacian + bends[:, axis : axis + 1]
    return laplacian.square().sum()


@ranks(2)
def test_physics_informed_network(world: World) -> None:
    """The loss has second derivatives in it; gradients of parameters are of the third order."""
    torch.manual_seed(4)
    net = Coordinates().double()
    x = numbers((1, 2, 8, 6))
    twin = knn.distribute(net, grid(world, (1, 1, 2, 1)), x)
    expected = residual_of(net, x.clone().requires_grad_())
    wanted = torch.autograd.grad(expected, list(net.parameters())[:-1])
    loss = ops.total(
        residual_of(twin, twin.block_of(x).requires_grad_()), world_partition(world).group
    )
    got = torch.autograd.grad(loss, list(net.parameters())[:-1])
    check_near(loss.detach(), expected.detach(), "loss")
    for one, other in zip(got, wanted, strict=True):
        check_near(one, other, "parameters")


def penalty_of(critic: Module, x: torch.Tensor, total: Module) -> torch.Tensor:
    """The gradient penalty of WGAN-GP: (|grad| - 1)^2 for each image, which all workers share."""
    (slopes,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    norms = total(slopes.square().sum((1, 2, 3))).sqrt()
    return (norms - 1).square().sum()


@ranks(2)
def test_gradient_penalty_on_a_split_image(world: World) -> None:
    torch.manual_seed(5)
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 1, 1),
    ).double()
    images = numbers((3, 1, 16, 8))
    twin = knn.distribute(critic, grid(world, (1, 1, 2, 1)), images)
    group = world_partition(world).group
    parameters = list(critic.parameters())[:-1]  # the last bias has no part in gradients
    expected = penalty_of(critic, images.clone().requires_grad_(), lambda x: x)
    wanted = torch.autograd.grad(expected, parameters)
    penalty = penalty_of(
        twin, twin.block_of(images).requires_grad_(), lambda x: ops.total(x, group)
    )
    got = torch.autograd.grad(penalty, parameters)
    check_near(penalty.detach(), expected.detach(), "penalty")
    for one, other in zip(got, wanted, strict=True):
        check_near(one, other, "parameters")
