"""The front in the shape of torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

import pytest
import torch
from sharded_kit import (
    OPTIMIZERS,
    assert_same,
    backward,
    make_parameters,
    mean_of_step,
    one_process,
    plain,
    pull_of,
)

from kadril.errors import CheckpointError, MismatchError, StateError
from kadril.sharded import ShardedOptimizer
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[3]
UNFUSED = {**OPTIONS, "fused": False}


@ranks(1, 2, 3)
def test_gradients_that_somebody_else_reduced(world: World) -> None:
    """As behind DistributedDataParallel: each rank has the mean, and keeps it."""
    for rule in (None, "largest_first"):
        parameters = make_parameters()
        optimizer = ShardedOptimizer(
            parameters, torch.optim.AdamW, world=world, rule=rule, **OPTIONS
        )
        means = [mean_of_step(step, world.size) for step in range(3)]
        for each in means:
            for parameter, gradient in zip(parameters, each, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(parameters, each, strict=True))
            optimizer.zero_grad()
        assert_same(parameters, one_process(plain(NAME, UNFUSED), means)[0])


@ranks(2)
def test_gradients_that_nobody_reduced_are_noticed(world: World) -> None:
    parameters = make_parameters(((3,), (50,)))
    optimizer = ShardedOptimizer(parameters, torch.optim.SGD, lr=0.5, world=world)
    backward(parameters, [torch.ones(3), torch.full((50,), 1.0 + world.rank)])
    with pytest.raises(MismatchError, match=r"'parameter.1' on rank 1 .* reduce_gradients=True"):
        optimizer.step()
    assert_same(parameters, make_parameters(((3,), (50,))))


@ranks(2, 3)
def test_it_reduces_gradients_and_takes_closures_and_schedulers(world: World) -> None:
    parameters, alone = make_parameters(), make_parameters()
    ours = ShardedOptimizer(
        parameters, torch.optim.AdamW, reduce_gradients=True, world=world, **OPTIONS
    )
    theirs = torch.optim.AdamW(alone, **OPTIONS)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (ours, theirs)]
    for step in range(3):
        pull = pull_of(world.rank, step, world.size)

        def closure(pull: list[torch.Tensor | None] = pull) -> float:
            ours.zero_grad()
            backward(parameters, pull)
            return 7.0

        assert ours.step(closure) == 7.0
        for parameter, gradient in zip(alone, mean_of_step(step, world.size), strict=True):
            parameter.grad = gradient
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] == 0.1 / 8
    assert [id(each) for each in ours.param_groups[0]["params"]] == [
        id(each) for each in parameters
    ]
    assert_same(parameters, alone)


@ranks(2)
def test_state_is_consolidated_and_loaded(world: World) -> None:
    def make(parameters: list[torch.nn.Parameter]) -> ShardedOptimizer:
        return ShardedOptimizer(
            parameters, torch.optim.AdamW, reduce_gradients=True, world=world, **OPTIONS
        )

    parameters = make_parameters()
    optimizer = make(parameters)
    backward(parameters, pull_of(world.rank, 0, 2))
    optimizer.step()
    with pytest.raises(StateError, match=r"consolidate_state_dict\(to="):
        optimizer.state_dict()
    for to in range(2):
        optimizer.consolidate_state_dict(to=to)
        if world.rank == to:
            state = optimizer.state_dict()
    _, plain_one = one_process(plain(NAME, UNFUSED), [mean_of_step(0, 2)])
    for place, values in plain_one.state_dict()["state"].items():
        for key, value in values.items():
            assert torch.equal(state["state"][place][key], value)
    again = [torch.nn.Parameter(each.detach().clone()) for each in parameters]
    restored = make(again)
    restored.load_state_dict(state)
    for each, tensors in ((optimizer, parameters), (restored, again)):
        each.zero_grad()
        backward(tensors, pull_of(world.rank, 1, 2))
        each.step()
    assert_same(parameters, again)
    with pytest.raises(StateError, match="after the last step"):
        optimizer.state_dict()
    with pytest.raises(CheckpointError, match="has 1 parameters, the trainer has 7"):
        optimizer.load_state_dict(torch.optim.AdamW(parameters[:1]).state_dict())


@ranks(2)
def test_groups_are_added_and_a_rank_without_data_steps_along(world: World) -> None:
    shapes = ((3,), (50,))
    parameters = make_parameters(shapes)
    optimizer = ShardedOptimizer(
        parameters[:1], torch.optim.SGD, lr=0.5, reduce_gradients=True, world=world
    )
    optimizer.add_param_group({"params": parameters[1:], "lr": 0.25})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert optimizer.param_groups[1]["params"][0] is parameters[1]
    if world.rank == 0:
        backward(parameters, pull_of(0, 0, 2, shapes))
        optimizer.step()
    else:
        optimizer.join_hook().main_hook()
    for parameter, before, gradient, lr in zip(
        parameters, make_parameters(shapes), pull_of(0, 0, 2, shapes), (0.5, 0.25), strict=True
    ):
        assert torch.equal(parameter, before - lr * gradient / 2)
