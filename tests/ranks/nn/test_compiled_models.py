"""`torch.compile` of split models: the same numbers, in the order of collectives that ranks share.

Weights and inputs are whole numbers, so results compare with `==`, however they are compiled.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conv_kit import with_whole_numbers
from inductor_kit import inductor
from partition_kit import grid
from torch import nn

import kadril.nn as knn
import kadril.ops
from kadril import ops
from kadril.nn import primitives
from kadril.partition import Partition
from kadril.testing import integer_valued, ranks
from kadril.world import World


def ordinary() -> nn.Module:
    return nn.Sequential(
        with_whole_numbers(nn.Conv2d(2, 3, 3, padding=1)),
        nn.ReLU(),
        with_whole_numbers(nn.Conv2d(3, 2, 3, padding=1)),
    )


def layer_by_layer(P_x: Partition) -> nn.Module:
    first, between, last = ordinary().children()
    return nn.Sequential(
        knn.DistributedConv2d.of(first, P_x),  # type: ignore[arg-type]
        between,
        knn.DistributedMaxPool2d(P_x, 3, 1, 1),
        knn.DistributedConv2d.of(last, P_x),  # type: ignore[arg-type]
    )


def passes(model: Callable[..., torch.Tensor], x: torch.Tensor, parameters: Any) -> list[Any]:
    """Result and gradients."""
    x = x.clone().requires_grad_()
    y = model(x)
    loss = (y * integer_valued(y.shape, seed=4)).sum()
    return [y.detach(), *torch.autograd.grad(loss, [x, *parameters])]


def check_same(model: nn.Module, compiled: Any, P_x: Partition) -> None:
    """Compare in both modes, with and without gradients, for sizes that change."""
    parameters = list(model.parameters())
    for training in (True, False):
        model.train(training)
        for sizes in ((2, 2, 8, 6), (3, 2, 8, 6), (2, 2, 10, 6), (2, 2, 8, 6)):
            x = knn.block_of(integer_valued(sizes, seed=3), P_x)
            for one, other in zip(
                passes(model, x, parameters), passes(compiled, x, parameters), strict=True
            ):
                assert torch.equal(one, other)
        with torch.no_grad():
            y = compiled(x)
        assert not y.requires_grad
        assert torch.equal(y, model(x))


@ranks(2)
def test_compiled_models(world: World) -> None:
    """Models failed within Dynamo: AssertionError: Expected np.nditer base.

    The backend does all that "eager" does, and traces the backward pass too.
    """
    P_x = grid(world, (1, 1, 2, 1))
    twin = knn.distribute(ordinary(), P_x, torch.zeros(2, 2, 8, 6, dtype=torch.float64))
    for model in (twin, layer_by_layer(P_x)):
        check_same(model, torch.compile(model, backend="aot_eager"), P_x)
        torch._dynamo.reset()


@ranks(2)
def test_what_is_between_layers_is_compiled(world: World) -> None:
    """Nothing of what communicates is compiled."""
    P_x = grid(world, (1, 1, 2, 1))
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    halo = [(0, 0), (0, 0), (1, 1), (0, 0)]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = ops.halo_exchange((x * 2).relu(), P_x, halo)
        return ops.all_sum_reduce(y.sin() + y.cos(), P_x, (2,)).exp()

    x = integer_valued((1, 2, 4, 3), seed=1, rank=world.rank)
    assert torch.equal(torch.compile(function, backend=keep)(x), function(x))
    calls = [
        node.name for graph in graphs for node in graph.graph.nodes if node.op.startswith("call")
    ]
    assert calls == ["mul", "relu", "sin", "cos", "add", "exp"]
    torch._dynamo.reset()


@ranks(2)
def test_compiled_by_inductor(world: World, tmp_path: Path) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    model = layer_by_layer(P_x)
    x = knn.block_of(integer_valued((2, 2, 8, 6), seed=3), P_x)
    parameters = list(model.parameters())
    with inductor(tmp_path / str(world.rank)):
        got = passes(torch.compile(model), x, parameters)
    for one, other in zip(got, passes(model, x, parameters), strict=True):
        assert torch.equal(one, other)


def test_whatever_communicates_is_left_as_it_is() -> None:
    """A new layer or primitive is not to be traced: Dynamo would look into its collectives."""

    def is_left(function: Any) -> bool:
        return bool(inspect.getattr_static(function, "_torchdynamo_disable", False))

    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(knn.__path__, "kadril.nn.")
    ]
    layers = {
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, nn.Module)
        and each.__module__.startswith("kadril.nn")
        and each.__module__ != primitives.__name__  # around the functions of `kadril.ops`
        and "forward" in vars(each)
        # Layers that only `distribute` makes are called by the model, which is left as it is.
        and (each is knn.DistributedModel or ".distribution." not in each.__module__)
    }
    assert layers
    assert [each for each in layers if not is_left(each.forward)] == []
    assert is_left(knn.whole_of)
    assert is_left(knn.interpolate)
    for name in set(kadril.ops.__all__) - {"zero_volume_tensor"}:
        found = getattr(kadril.ops, name)
        assert is_left(found.__call__ if isinstance(found, type) else found), name
