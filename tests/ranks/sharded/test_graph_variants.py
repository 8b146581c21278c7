"""One compiled graph that torch uses for the parameters of several modules, models or trainers."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from graph_kit import WIDTH, batch, total
from inductor_kit import inductor
from torch import nn

from kadril.errors import StateError
from kadril.sharded import POS_Trainer
from kadril.sharded.graph import kadril_backend
from kadril.testing import ranks
from kadril.world import World

NUM_LAYERS = 4
NUM_STEPS = 3


class Layer(nn.Module):
    """Has a break in the middle, so that its two halves are graphs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        y: torch.Tensor = self.second(x)
        return y


class Stack(nn.Module):
    """Layers of one class, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_stack(seed: int = 0) -> Stack:
    torch.manual_seed(seed)
    return Stack()


def compiled(model: nn.Module, *, inner: str = "eager", dynamic: bool | None = None) -> nn.Module:
    made: nn.Module = torch.compile(
        model, backend=kadril_backend, options={"inner": inner}, dynamic=dynamic
    )
    return made


def go(run: nn.Module, x: torch.Tensor) -> None:
    """One backward pass."""
    with warnings.catch_warnings():
        # Of dynamo, which asks the result of one graph for its .grad before it makes the next.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        total(run(x)).backward()


def train(run: nn.Module, trainer: POS_Trainer, world: World) -> None:
    for step in range(NUM_STEPS):
        go(run, batch(world.rank + step).float())
        trainer.step()


def values(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def eagerly_trained(model: nn.Module, world: World) -> list[torch.Tensor]:
    model = copy.deepcopy(model)
    train(model, POS_Trainer(model, "sgd", {"lr": 0.1}, world=world), world)
    return values(model)


def assert_trained(model: nn.Module, expected: list[torch.Tensor]) -> None:
    for name, (found, other) in zip(
        dict(model.named_parameters()), zip(values(model), expected, strict=True), strict=True
    ):
        # Compiled and eager layers round alike up to the order within a product of WIDTH terms.
        assert torch.allclose(found, other, rtol=0, atol=NUM_STEPS * 2**-20), name


@ranks(1, 2)
def test_layers_of_one_class_with_a_break(world: World) -> None:
    """The code of layer 0 ran for all layers, and sent their gradients to the owners of layer 0."""
    train_with_breaks(world, "eager")


@pytest.mark.long
@ranks(2)
def test_layers_of_one_class_by_inductor(world: World, tmp_path: Path) -> None:
    with inductor(tmp_path):
        train_with_breaks(world, "inductor")


def train_with_breaks(world: World, inner: str) -> None:
    torch._dynamo.reset()
    model = make_stack()
    expected = eagerly_trained(model, world)
    trainer = POS_Trainer(model, "sgd", {"lr": 0.1}, world=world)
    train(compiled(model, inner=inner), trainer, world)
    assert_trained(model, expected)


@ranks(2)
def test_layers_that_are_compiled_one_by_one(world: World) -> None:
    """Regional compilation: torch compiles one layer, and uses that for all of them."""
    torch._dynamo.reset()
    model = make_stack()
    expected = eagerly_trained(model, world)
    trainer = POS_Trainer(model, "sgd", {"lr": 0.1}, world=world)
    for layer in model.layers:
        layer.compile(backend=kadril_backend, options={"inner": "eager"})
    train(model, trainer, world)
    assert_trained(model, expected)


@ranks(2)
def test_two_models_of_one_class_have_their_own_trainers(world: World) -> None:
    """The gradients of the second model went to the trainer of the first."""
    torch._dynamo.reset()
    models = [make_stack(seed) for seed in (0, 1)]
    expected = [eagerly_trained(model, world) for model in models]
    trainers = [POS_Trainer(model, "sgd", {"lr": 0.1}, world=world) for model in models]
    runs = [compiled(model) for model in models]
    for run, trainer in zip(runs, trainers, strict=True):
        train(run, trainer, world)
    for model, answer in zip(models, expected, strict=True):
        assert_trained(model, answer)


@ranks(2)
def test_a_new_trainer_takes_over(world: World) -> None:
    """The code of before asked for the plan of a trainer that is gone, or that has no say now."""
    torch._dynamo.reset()
    model = make_stack()
    expected = eagerly_trained(model, world)
    run = compiled(model)
    for step in range(NUM_STEPS):
        trainer = POS_Trainer(model, "sgd", {"lr": 0.1}, world=world)
        go(run, batch(world.rank + step).float())
        trainer.step()
        del trainer
    assert_trained(model, expected)
    with pytest.raises(StateError, match="no trainer knows"):
        run(batch(0).float())


@ranks(2)
def test_batches_of_many_sizes_in_layers_of_one_class(world: World) -> None:
    """Code compiled for the second layer is for the sizes at hand; others get their own."""
    torch._dynamo.reset()
    model = make_stack()
    twin = copy.deepcopy(model)
    trainers = [POS_Trainer(each, "sgd", {"lr": 0.1}, world=world) for each in (model, twin)]
    run = compiled(model, dynamic=True)
    for size in (3, 5, 4, 3):
        x = torch.linspace(-1, 1, size * WIDTH).reshape(size, WIDTH) * (world.rank + 1)
        go(run, x)
        go(twin, x)
        for trainer in trainers:
            trainer.step()
    assert_trained(model, values(twin))
