"""Ranks that disagree on which gradients there are: dynamic graphs, unused and frozen layers."""

from __future__ import annotations

import torch
from gradient_kit import Pull, assert_same, backward, combined
from training_kit import (
    all_ranks,
    assert_gradients,
    both_ways,
    make_parameters,
    momentum_sgd,
    one_process,
    pull_of,
)

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World


def some_of(rank: int, step: int) -> Pull:
    """Each rank leaves out other parameters in each step; parameter 1 is nowhere in step 1."""
    pull = pull_of(rank, step)
    return [
        None if (place + rank + step) % 3 == 0 or (place in (1, 4) and step == 1) else each
        for place, each in enumerate(pull)
    ]


@ranks(1, 3)
@both_ways
def test_ranks_may_skip_different_layers(world: World) -> None:
    """A rank without a gradient takes part with zeros, and gets what the others have.

    What no rank has stays None: weight decay must not touch it, as it does not in one process.
    """
    hvd.init()
    for set_to_none in (True, False):
        for groups in (None, 2):
            parameters = make_parameters()
            optimizer = hvd.DistributedOptimizer(
                momentum_sgd(parameters), op=hvd.Sum, groups=groups
            )
            sums = []
            for step in range(4):
                optimizer.zero_grad(set_to_none=set_to_none)
                backward(parameters, some_of(world.rank, step))
                optimizer.step()
                sums.append(combined([some_of(rank, step) for rank in range(world.size)]))
                if set_to_none or step == 0:
                    assert_gradients(parameters, sums[-1])
            if set_to_none:
                assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2, 3, transports=("c10d", "mpi:openmpi"))
@both_ways
def test_ranks_may_skip_different_layers_on_other_transports(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    sums = []
    for step in range(3):
        optimizer.zero_grad()
        backward(parameters, some_of(world.rank, step))
        optimizer.step()
        sums.append(combined([some_of(rank, step) for rank in range(world.size)]))
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(3)
@both_ways
def test_a_rank_without_any_gradient_takes_part(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    for step in range(3):
        optimizer.zero_grad()
        if world.rank != step:
            backward(parameters, pull_of(world.rank, step))
        optimizer.step()
        others = [pull for rank, pull in enumerate(all_ranks(step)) if rank != step]
        assert_gradients(parameters, combined(others))


@ranks(2)
@both_ways
def test_frozen_parameters_are_left_alone_and_unfrozen_ones_are_reduced(world: World) -> None:
    """Progressive unfreezing: a layer frozen at the start was never reduced after its thaw."""
    hvd.init()
    for thaw_before_zero_grad in (True, False):
        parameters = make_parameters()
        for place in (0, 4):
            parameters[place].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
        frozen = [None if place in (0, 4) else each for place, each in enumerate(pull_of(0))]
        backward(
            parameters,
            [None if f is None else p for f, p in zip(frozen, pull_of(world.rank), strict=True)],
        )
        optimizer.step()
        first = [
            None if f is None else s for f, s in zip(frozen, combined(all_ranks()), strict=True)
        ]
        assert_gradients(parameters, first)
        if not thaw_before_zero_grad:
            optimizer.zero_grad()
        for place in (0, 4):
            parameters[place].requires_grad_(True)
        if thaw_before_zero_grad:
            optimizer.zero_grad()
        sums = [first]
        for step in (1, 2):
            backward(parameters, pull_of(world.rank, step))
            optimizer.step()
            sums.append(combined(all_ranks(step)))
            assert_gradients(parameters, sums[-1])
            optimizer.zero_grad()
        assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2)
@both_ways
def test_parameters_frozen_later_are_not_stepped(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    parameters[1].requires_grad_(False)
    parameters[4].requires_grad_(False)
    before = parameters[4].detach().clone()
    pull = [None if place in (1, 4) else each for place, each in enumerate(pull_of(world.rank))]
    backward(parameters, pull)
    optimizer.step()
    assert parameters[4].grad is None
    assert torch.equal(parameters[4], before)
    expected = [
        None if place in (1, 4) else each for place, each in enumerate(combined(all_ranks()))
    ]
    assert_gradients(parameters, expected)


@ranks(2)
@both_ways
def test_lazy_parameters_are_taken_when_they_have_a_shape(world: World) -> None:
    hvd.init()
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 2)).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=hvd.Sum
    )
    rows = torch.ones(2, 4, dtype=torch.float64) * (world.rank + 1)
    model(rows)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    for _ in range(2):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        model(rows).sum().backward()
        optimizer.step()
        # d/dbias of the last layer: 2 rows on each of the 2 ranks
        last = list(model.parameters())[3]
        assert torch.equal(last.grad, torch.full((2,), 4.0, dtype=torch.float64))
        first = next(model.parameters())
        assert first.grad is not None
        scale = before[2].sum(0)  # of the second layer's weight, per hidden unit
        assert torch.equal(first.grad, (scale[:, None] * 2 * 3).expand(3, 4))


@ranks(2)
@both_ways
def test_parameters_added_later_are_reduced(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters[:3]), op=hvd.Sum)
    backward(parameters[:3], pull_of(world.rank)[:3])
    optimizer.step()
    optimizer.add_param_group({"params": parameters[3:], "lr": 0.25})
    for step in (1, 2):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step)))
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.25]


@ranks(2)
@both_ways
def test_tied_parameters_are_reduced_once(world: World) -> None:
    hvd.init()
    model = torch.nn.Module()
    model.encoder = torch.nn.Linear(2, 2, bias=False)
    model.decoder = torch.nn.Linear(2, 2, bias=False)
    model.decoder.weight = model.encoder.weight
    for names in (model.named_parameters(), model.named_parameters(remove_duplicate=False)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, names, op=hvd.Sum)
        optimizer.zero_grad()
        rows = torch.full((1, 2), float(world.rank + 1))
        (model.encoder(rows).sum() + 2 * model.decoder(rows).sum()).backward()
        optimizer.synchronize()
        assert torch.equal(model.encoder.weight.grad, torch.full((2, 2), 9.0))
        with optimizer.skip_synchronize():
            optimizer.step()
