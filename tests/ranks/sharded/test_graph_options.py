"""`optimize_for`, `backward` and their options; gradients of which each rank gets a part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graph_kit import (
    WIDTH,
    assert_gradients,
    batch,
    make_plan,
    reference,
    total,
    whole,
)
from torch import nn

from kadril.errors import StateError
from kadril.sharded.graph import (
    CompileOptions,
    backward,
    backward_options,
    graph_pass_options,
    optimize_for,
    register_plan,
)
from kadril.testing import ranks
from kadril.world import World


def layers() -> nn.Module:
    return whole(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)))


@ranks(2)
def test_the_form_of_the_seed(world: World) -> None:
    """Options of the trainer, the pass by its name, and a backward pass with options."""
    model = layers()
    x = batch(world.rank)
    expected = reference(model, world, x)
    plan = make_plan(model, world)
    for compiled_for in (True, False):
        options = graph_pass_options(plan.registration)
        assert options["owners"] == plan.owners
        torch._dynamo.reset()
        run = optimize_for(
            model, x, backend="add_reduce_op", inner="eager", partition_grad=compiled_for, **options
        )
        for wanted in (True, False, True):
            model.zero_grad()
            chosen = {**backward_options(plan.registration), "partition_grad": wanted}
            backward(total(run(x)), backward_option=chosen)
            assert_gradients(model, plan, expected, is_partitioned=wanted)
        model.zero_grad()
        backward(total(run(x)))
        assert_gradients(model, plan, expected, is_partitioned=compiled_for)
    plan.close()


@ranks(2)
def test_compiling_for_an_example_changes_nothing(world: World) -> None:
    model = whole(nn.Sequential(nn.Linear(WIDTH, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)))
    plan = make_plan(model, world)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    state = torch.get_rng_state()
    torch._dynamo.reset()
    optimize_for(model, (batch(0),), inner="eager", fullgraph=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    plan.close()


class PartPlan:
    """Each rank gets a part of every gradient, and keeps it; a `GradientPlan`."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self.parameters = dict(model.named_parameters())
        self.names = tuple(self.parameters)
        self.world = world
        self.rank, self.size = world.rank, world.size
        self.parts: dict[str, torch.Tensor] = {}
        self.registration = register_plan(self)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        return next((name for name, each in self.parameters.items() if each is parameter), None)

    def parameter_of(self, name: str) -> torch.Tensor:
        return self.parameters[name]

    def owner_of(self, name: str) -> None:
        return None

    def note_dropped(self, name: str) -> None:
        pass

    def counts(self, name: str) -> list[int]:
        length = self.parameters[name].numel()
        return [length * (r + 1) // self.size - length * r // self.size for r in range(self.size)]

    def reduce_gradient(
        self, name: str, gradient: torch.Tensor, label: str, *, is_given: bool = False
    ) -> None:
        counts = self.counts(name)
        part = gradient.new_empty(counts[self.rank])
        self.world.transport.reduce_scatterv(
            gradient.view(-1), part, counts, postscale=1 / self.size, name=label
        )
        self.parts[name] = self.parts.get(name, 0) + part


@ranks(1, 2, 3)
def test_each_rank_gets_a_part(world: World) -> None:
    model = layers()
    x = batch(world.rank)
    expected = reference(model, world, x)
    plan = PartPlan(model, world)
    torch._dynamo.reset()
    run = optimize_for(model, inner="eager", **graph_pass_options(plan.registration))
    total(run(x)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        mean = expected[name][1]
        assert mean is not None
        part = mean.view(-1).split(plan.counts(name))[world.rank]
        assert torch.equal(plan.parts[name], part)
    # Kept, they come in `.grad` instead, and not both ways: the plan would count them twice.
    for compiled_for in (True, False):
        plan.parts.clear()
        model.zero_grad()
        torch._dynamo.reset()
        run = optimize_for(model, inner="eager", partition_grad=compiled_for)
        chosen = {**backward_options(plan.registration), "partition_grad": False}
        backward(total(run(x)), chosen)
        assert not plan.parts
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, expected[name][0])


@ranks(1)
def test_options_that_make_no_sense(world: World) -> None:
    model = layers()
    plan = make_plan(model, world)
    good = graph_pass_options(plan.registration)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"iner": "eager"}, r"unknown option\(s\) iner; there are inductor, inner"),
        ({"inner": "eagre"}, r"inner is 'eagre'; it is one of 'inductor', 'eager'"),
        ({"order": "name"}, r"order is 'name'"),
        ({"inner": "eager", "inductor": {"debug": True}}, r"settings of inductor are given"),
        ({"owners": {}}, r"there is no option 'plan'"),
        ({**good, "owners": {**good["owners"], "0.weight": 5}}, r"is not what the trainer has"),
        ({**good, "num_ranks": 7}, r"'num_ranks' is not what the trainer has: 7 instead of 1"),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            CompileOptions.of(options)
        with pytest.raises(ValueError, match=message):
            optimize_for(model, **options)
    with pytest.raises(ValueError, match=r"the pass is called 'add_reduce_op'"):
        optimize_for(model, batch(0), backend="add_broadcast_op")
    loss = total(model(batch(0)))
    with pytest.raises(ValueError, match=r"there is no option 'plan'"):
        backward(loss, {"partition_grad": True})
    with pytest.raises(ValueError, match=r"the options are those of rank 3, this is rank 0"):
        backward(loss, {**backward_options(plan.registration), "current_rank": 3})
    key = plan.key
    plan.close()
    with pytest.raises(StateError, match=r"the trainer that made it is gone"):
        backward(loss, {"plan": key})
    named = list(model.named_parameters())
    for owners, message in (({"0.weigt": 0}, "not a parameter"), ({"0.weight": 1}, "rank 1")):
        with pytest.raises(ValueError, match=message):
            type(plan)(named, owners, world.transport)
    with pytest.raises(ValueError, match="has to be positive"):
        type(plan)(named, {}, world.transport, gradient_predivide_factor=0.0)
