"""The pass by the inner compiler "eager": which gradients are where, in which order, until when."""

from __future__ import annotations

import warnings

import pytest
import torch
from graph_kit import (
    WIDTH,
    Broken,
    Tricky,
    WatchingPlan,
    assert_gradients,
    batch,
    make_plan,
    reference,
    total,
    whole,
)
from torch import nn

from kadril.errors import MismatchError, StateError
from kadril.sharded.graph import kadril_backend, register_backend
from kadril.sharded.graph.owner_plan import owners_by_rule
from kadril.testing import ranks
from kadril.world import World


def compiled(model: nn.Module, *, dynamic: bool | None = None, **options: object) -> nn.Module:
    torch._dynamo.reset()
    made: nn.Module = torch.compile(
        model, backend=kadril_backend, options={"inner": "eager", **options}, dynamic=dynamic
    )
    return made


@ranks(1, 2, 3)
def test_owned_gradients_are_those_of_an_allreduce(world: World) -> None:
    compare_with_allreduce(world, torch.float64, torch.float16)


@ranks(2, transports=("c10d",))
def test_owned_gradients_are_those_of_an_allreduce_by_gloo(world: World) -> None:
    compare_with_allreduce(world, torch.float32)


def compare_with_allreduce(world: World, *dtypes: torch.dtype) -> None:
    for dtype in dtypes:
        for partition_grad in (True, False):
            model = whole(Tricky(), dtype)
            x = batch(world.rank, dtype=dtype)
            expected = reference(model, world, x)
            plan = make_plan(model, world)
            run = compiled(model, partition_grad=partition_grad)
            for num_passes in (1, 2, 3):  # which add up
                total(run(x)).backward()
                assert_gradients(
                    model, plan, expected, is_partitioned=partition_grad, num_passes=num_passes
                )
            plan.close()


@ranks(2)
def test_predividing_gives_the_same_mean(world: World) -> None:
    model = whole(Tricky())
    expected = reference(model, world, batch(world.rank))
    plan = make_plan(model, world, gradient_predivide_factor=4.0)
    total(compiled(model)(batch(world.rank))).backward()
    assert_gradients(model, plan, expected)
    plan.close()


@ranks(2)
def test_parameters_that_are_views_of_one_memory(world: World) -> None:
    """AOTAutograd must not take parameters for one tensor that a trainer lays out together."""
    model = whole(Tricky())
    expected = reference(model, world, batch(world.rank))
    flat = torch.empty(sum(each.numel() for each in model.parameters()), dtype=torch.float64)
    begin = 0
    for parameter in model.parameters():
        place = flat[begin : begin + parameter.numel()].view(parameter.shape)
        parameter.data = place.copy_(parameter.detach())
        begin += parameter.numel()
    plan = make_plan(model, world)
    total(compiled(model)(batch(world.rank))).backward()
    assert_gradients(model, plan, expected)
    plan.close()


@ranks(2, 3)
def test_a_weight_in_two_graphs(world: World) -> None:
    """Each graph reduces its part, and the owner adds them up: a reduction is linear."""
    model = whole(Broken())
    factor = world.size  # so that the mean of each part is a whole number
    expected = reference(model, world, batch(world.rank), factor)
    plan = make_plan(model, world)
    run = compiled(model)
    for num_passes in (1, 2):
        with warnings.catch_warnings():
            # Dynamo asks what lies between two graphs for its gradient.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not")
            loss = factor * total(run(batch(world.rank)))
        loss.backward()
        assert_gradients(model, plan, expected, num_passes=num_passes)
    plan.close()


@ranks(2)
def test_ranks_with_batches_of_their_own_sizes(world: World) -> None:
    """A rank that compiles again, for dynamic shapes, reduces in the order of its first graph."""
    for order in ("graph", "parameters"):
        model = whole(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)))
        plan = make_plan(model, world)
        run = compiled(model, order=order)
        for num_rows in (4, 5, 7) if world.rank == 0 else (4, 4, 4):
            x = batch(world.rank, num_rows)
            expected = reference(model, world, x)
            model.zero_grad()
            total(run(x)).backward()
            assert_gradients(model, plan, expected)
        run = compiled(model, dynamic=True)
        for num_rows in (3 + world.rank, 6):
            x = batch(world.rank, num_rows)
            expected = reference(model, world, x)
            model.zero_grad()
            total(run(x)).backward()
            assert_gradients(model, plan, expected)
        plan.close()


@ranks(2)
def test_a_gradient_dies_at_its_reduction(world: World) -> None:
    num_layers, num_bytes = 6, 8 * 50 * 50
    model = whole(nn.Sequential(*[nn.Linear(50, 50, bias=False) for _ in range(num_layers)]))
    named = dict(model.named_parameters())
    owners = owners_by_rule(named, world.size)
    plan = WatchingPlan(named.items(), owners, world.transport).watch()
    run = compiled(model)
    for _ in range(2):
        model.zero_grad()
        plan.watch()
        total(run(torch.ones(3, 50, dtype=torch.float64))).backward()
        order = list(plan.seen)
        assert order == list(reversed(named))
        owned = [owners[name] == world.rank for name in order]
        # What is alive beside the gradient at hand is what this rank owns, and nothing else.
        assert plan.alive == [num_bytes * sum(owned[:place]) for place in range(num_layers)]
    plan.close()


class Fork(nn.Module):
    """Skips a layer on request."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, is_left: bool) -> torch.Tensor:
        return self.left(x) if is_left else self.right(x)


@ranks(2, transports=("shm", "c10d"))
def test_ranks_that_run_other_layers_are_told(world: World) -> None:
    """Both layers have the same shapes, so that only the names tell their gradients apart."""
    model = whole(Fork())
    plan = make_plan(model, world)
    run = compiled(model)
    x = batch(world.rank)
    loss = total(run(x, world.rank == 0))
    with pytest.raises(MismatchError, match=r"backward graphs of the ranks are not the same"):
        loss.backward()
    for is_left in (True, False):  # and it goes on
        model.zero_grad()
        total(run(x, is_left)).backward()
        layer = model.left if is_left else model.right
        assert (layer.bias.grad is not None) == (
            plan.owners["left.bias" if is_left else "right.bias"] == world.rank
        )
    plan.close()


@ranks(2)
def test_a_gradient_from_outside_of_the_graph_is_refused(world: World) -> None:
    """The gradient would be missing in the owner's sum, which nobody would notice."""
    model = whole(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)))
    plan = make_plan(model, world)
    run = compiled(model)
    loss = total(run(batch(0))) + model[0].weight.sum()
    if plan.owners["0.weight"] == world.rank:
        loss.backward()
    else:
        with pytest.raises(StateError, match=r"'0.weight' got a gradient outside of the compiled"):
            loss.backward()
    plan.close()


@ranks(2)
def test_parameters_of_others_are_left_alone(world: World) -> None:
    model = whole(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)))
    x = batch(world.rank)
    expected = reference(model, world, x)
    named = {name: each for name, each in model.named_parameters() if name.startswith("0.")}
    plan = WatchingPlan(model.named_parameters(), dict.fromkeys(named, 1), world.transport).watch()
    total(compiled(model)(x)).backward()
    assert set(plan.seen) == set(named)
    for name, parameter in model.named_parameters():
        own, mean = expected[name]
        wanted = own if name not in named else mean if world.rank == 1 else None
        assert (parameter.grad is None) == (wanted is None)
        assert wanted is None or torch.equal(parameter.grad, wanted)
    plan.close()


@ranks(1)
def test_without_a_trainer_or_after_it(world: World) -> None:
    model = whole(nn.Sequential(nn.Linear(WIDTH, 2)))
    run = compiled(model)
    with torch.no_grad():
        run(batch(0))  # nothing to reduce
    with pytest.raises(Exception, match=r"no trainer knows the 2 parameters of this graph"):
        run(batch(0))
    plan = make_plan(model, world)
    register_backend()
    register_backend()
    torch._dynamo.reset()
    run = torch.compile(model, backend="kadril", options={"inner": "eager"})
    loss = total(run(batch(0)))
    plan.close()
    with pytest.raises(StateError, match=r"the trainer that made it is gone"):
        loss.backward()
