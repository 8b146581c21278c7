"""`POS_Trainer` with compiled models: the same training as without compiling."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from graph_kit import WIDTH, Broken, Tricky, batch, total, whole
from inductor_kit import inductor
from torch import nn

from kadril.sharded import POS_Trainer
from kadril.sharded.graph import backward, kadril_backend, optimize_for
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NUM_STEPS = 4

Train = Callable[[nn.Module, POS_Trainer, torch.Tensor], Callable[[torch.Tensor], None]]


def eagerly(model: nn.Module, trainer: POS_Trainer, x: torch.Tensor) -> Callable[..., None]:
    return lambda x: torch.autograd.backward(total(model(x)))


def compiled(model: nn.Module, trainer: POS_Trainer, x: torch.Tensor) -> Callable[..., None]:
    run = torch.compile(model, backend=kadril_backend, options={"inner": "eager"})
    return lambda x: torch.autograd.backward(total(run(x)))


def as_the_seed(model: nn.Module, trainer: POS_Trainer, x: torch.Tensor) -> Callable[..., None]:
    options = trainer.generate_graph_pass_options()
    backward_options = trainer.generate_backward_options()
    run = optimize_for(model, x, backend="add_reduce_op", inner="eager", **options)
    return lambda x: backward(total(run(x)), backward_option=backward_options)


def kept(model: nn.Module, trainer: POS_Trainer, x: torch.Tensor) -> Callable[..., None]:
    """Gradients that the graph hands out go the way that they go without compiling."""
    options = {**trainer.generate_backward_options(), "partition_grad": False}
    run = optimize_for(model, x, inner="eager")
    return lambda x: backward(total(run(x)), backward_option=options)


def trained(model: nn.Module, world: World, way: Train, rule: str | None) -> nn.Module:
    """A copy of the model, after some steps of two passes each."""
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    trainer = POS_Trainer(model, "adam", {"lr": 0.1}, rule=rule, world=world)
    run = way(model, trainer, batch(world.rank).float())
    for step in range(NUM_STEPS):
        for number in range(2):
            run(batch(world.rank + 2 * step + number).float())
        # The weight in both graphs of `Broken` comes again when its bucket is on its way.
        if way is not kept and not isinstance(model, Broken):
            assert all(raw_grad(parameter) is None for parameter in model.parameters())
        trainer.step(batch_size=2)
    return model


@ranks(1, 3)  # and two below
def test_compiled_training_is_the_same(world: World) -> None:
    compare_ways(world)


@ranks(2, transports=("c10d",))
def test_compiled_training_without_shared_memory(world: World) -> None:
    compare_ways(world)


def compare_ways(world: World) -> None:
    torch.manual_seed(0)
    models = [
        nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 3)),
        Broken(),
    ]
    ways: list[Train] = [compiled, as_the_seed, kept]
    with warnings.catch_warnings():
        # Dynamo asks what lies between two graphs for its gradient.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not")
        for model, rule in zip(models, (None, "greedy"), strict=True):
            expected = trained(model, world, eagerly, rule)
            for way in ways:
                found = trained(model, world, way, rule)
                for (name, parameter), wanted in zip(
                    found.named_parameters(), expected.parameters(), strict=True
                ):
                    # The weight in both graphs of `Broken` is added up in another order: each of
                    # its two parts is reduced by itself. Adam's steps of 0.1 divide by the size of
                    # the gradient, so that an error of a few 2^-24 in it is one of 0.1 times that
                    # in the weight, for each of the steps.
                    bound = 0.0 if isinstance(found, nn.Sequential) else NUM_STEPS * 2**-20
                    assert (parameter - wanted).abs().max() <= bound, (way.__name__, name)


class Half(nn.Module):
    """A part that is compiled, and one that is not; of small integers, so that sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.run = torch.compile(self.body, backend=kadril_backend, options={"inner": "eager"})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(x))


def half_trained(world: World, *, drops: bool) -> list[torch.Tensor]:
    """Parameters after steps of two passes, before which another was dropped, or not made."""
    torch._dynamo.reset()
    model = whole(Half())
    trainer = POS_Trainer(model, "sgd", {"lr": 2.0**-4}, world=world)
    for step in range(3):  # each puts 5 more bits behind the point, and sums within 53 are exact
        if drops:
            total(model(batch(world.rank + 50))).backward()
            trainer.zero_grad()
        for number in range(2):
            total(model(batch(world.rank + 2 * step + number))).backward()
        trainer.step()
    return [each.detach() for each in model.parameters()]


@ranks(2, transports=("shm", "c10d"))
def test_passes_that_are_compiled_in_part_may_be_dropped(world: World) -> None:
    """Gradients that come after a drop count when ranks forget the sums of before it."""
    expected = half_trained(world, drops=False)
    for found, wanted in zip(half_trained(world, drops=True), expected, strict=True):
        assert torch.equal(found, wanted)


@ranks(1, 2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_tied_frozen_and_unused_parameters(world: World, dtype: torch.dtype) -> None:
    """Whole numbers and halves below 2^11, so that one step is exact in any order."""
    check_tricky(world, dtype, "eager")


@pytest.mark.long
@ranks(2)
def test_tied_frozen_and_unused_parameters_by_inductor(world: World, tmp_path: Path) -> None:
    with inductor(tmp_path):
        check_tricky(world, torch.float64, "inductor")


def check_tricky(world: World, dtype: torch.dtype, inner: str) -> None:
    torch._dynamo.reset()
    model = whole(Tricky(), dtype)
    twin = copy.deepcopy(model)
    trainer, other = (
        POS_Trainer(each, "sgd", {"lr": float(world.size)}, world=world) for each in (model, twin)
    )
    run = torch.compile(model, backend=kadril_backend, options={"inner": inner}, dynamic=True)
    for seed in (0, 5):
        x = batch(world.rank + seed, dtype=dtype)
        total(run(x)).backward()
        total(twin(x)).backward()
        used = [name for name, _ in twin.named_parameters() if name not in ("scale", "unused")]
        assert trainer._registration is not None
        assert trainer._registration.dropped == set(used)
    trainer.step()
    other.step()
    for (name, found), wanted in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    assert not torch.equal(model.first.weight, whole(Tricky(), dtype).first.weight)
