"""The front in the shape of torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from dcp_kit import process_group
from gradient_kit import assert_same, backward
from sharded_kit import OPTIMIZERS, make_parameters, mean_of_step, one_process, plain, pull_of
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from kadril.errors import CheckpointError, MismatchError, StateError, UnsupportedError
from kadril.sharded import ShardedOptimizer
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[3]
UNFUSED = {**OPTIONS, "fused": False}


@ranks(1, 2, 3)
def test_gradients_that_somebody_else_reduced(world: World) -> None:
    """Behind DistributedDataParallel each rank has the mean, and keeps it."""
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


@ranks(2)
def test_ranks_with_less_data_join(world: World, tmp_path: Path) -> None:
    """Torch's own Join: rank 0 has four batches, rank 1 two, and steps along for the others."""
    shapes = ((3,), (50,))
    parameters, alone = make_parameters(shapes), make_parameters(shapes)
    optimizer = ShardedOptimizer(
        parameters, torch.optim.SGD, lr=0.5, reduce_gradients=True, world=world
    )
    plain_one = torch.optim.SGD(alone, lr=0.5)
    with process_group(world, tmp_path), Join([optimizer]):
        for step in range(4 - 2 * world.rank):
            backward(parameters, pull_of(world.rank, step, 2, shapes))
            optimizer.step()
    for step in range(4):
        pulls = [pull_of(rank, step, 2, shapes) for rank in range(2 if step < 2 else 1)]
        for parameter, *gradients in zip(alone, *pulls, strict=True):
            parameter.grad = sum(gradients) / 2
        plain_one.step()
    assert_same(parameters, alone)


@ranks(3)
def test_ranks_with_less_data_join_behind_ddp(world: World, tmp_path: Path) -> None:
    """Rank r has 4 - r batches. One that runs out still steps its part, as the others do theirs.

    It was refused: DistributedDataParallel gives such a rank no gradients.
    """
    models = [torch.nn.Linear(4, 3) for _ in range(2)]
    with process_group(world, tmp_path):
        for model in models:
            with torch.no_grad():
                model.weight.copy_(torch.arange(12.0).view(3, 4))
                model.bias.fill_(1.0)
            train_in_join(world, model, is_sharded=model is models[0])
        world.transport.barrier()  # nobody takes the group down while another is in it
    assert_same([*models[0].parameters()], [*models[1].parameters()])


def train_in_join(world: World, model: torch.nn.Module, *, is_sharded: bool) -> None:
    """Train by DistributedDataParallel, which is gone before its process group is."""
    ddp = DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    joined: list[Joinable] = [ddp]
    if is_sharded:
        ours = ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.5, world=world)
        optimizer = ours
        joined.append(ours)
    with Join(joined):
        for step in range(4 - world.rank):
            optimizer.zero_grad()
            # Multiples of three: the mean over the ranks is exact.
            x = torch.full((1, 4), 3.0 * (1 + step + world.rank))
            ddp(x).sum().backward()
            optimizer.step()


class Scaled(torch.optim.SGD):
    """An optimizer whose step takes an argument of its own."""

    def step(self, closure: object = None, *, times: int = 1) -> None:
        for _ in range(times):
            super().step()


@ranks(2)
def test_what_programs_for_torchs_class_ask_it(world: World) -> None:
    """`optim`, arguments of `step`, several dtypes, and who owns what."""
    parameters = make_parameters(((3,), (50,)))
    parameters.append(torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)))
    optimizer = ShardedOptimizer(parameters, Scaled, lr=0.5, world=world, rule="largest_first")
    assert type(optimizer.optim) is Scaled
    assert optimizer.optim is optimizer.trainer.optimizer
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    before = [each.detach().clone() for each in parameters]
    optimizer.step(None, times=3)
    assert_same(parameters, [each - 1.5 for each in before])
    parts = [optimizer.trainer.parts_of(rank) for rank in range(2)]
    for name, parameter in zip(optimizer.trainer.names, parameters, strict=True):
        owner = optimizer.owners[name]
        assert parts[owner][name] == (0, parameter.numel())
        assert name not in parts[1 - owner]
    with pytest.raises(ValueError, match="ranks 0 to 1"):
        optimizer.trainer.parts_of(2)
    optimizer.close()
    again = ShardedOptimizer(parameters, torch.optim.SGD, lr=0.5, world=world)
    parts = [again.trainer.parts_of(rank) for rank in range(2)]
    assert sum(end - begin for part in parts for begin, end in part.values()) == 58


@ranks(2)
def test_a_gradient_that_one_rank_does_not_have_is_named(world: World) -> None:
    """The part of that rank would not be stepped, and all others would."""
    shapes = ((3,), (50,))
    parameters = make_parameters(shapes)
    optimizer = ShardedOptimizer(parameters, torch.optim.SGD, lr=0.5, world=world)
    for step in range(2):
        before = [each.detach().clone() for each in parameters]
        for place, parameter in enumerate(parameters):
            parameter.grad = torch.ones_like(parameter)
            if step and place and world.rank:
                parameter.grad = None
        if step == 0:
            optimizer.step()
            continue
        has = "no" if world.rank else "a"
        with pytest.raises(MismatchError, match=rf"'parameter.1'.* rank {world.rank} has {has} gr"):
            optimizer.step()
        assert_same(parameters, before)


@ranks(2)
def test_arguments_of_torchs_class(world: World, tmp_path: Path) -> None:
    parameters = make_parameters(((3,),))
    with process_group(world, tmp_path):
        everyone = dist.group.WORLD
        ShardedOptimizer(parameters, torch.optim.SGD, everyone, True, False, world=world, lr=0.5)
        alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
        with pytest.raises(UnsupportedError, match=rf"ranks \[{world.rank}\], the world 0 to 1"):
            ShardedOptimizer(parameters, torch.optim.SGD, process_group=alone, world=world)
    with pytest.raises(UnsupportedError, match="reduce_gradients=True instead"):
        ShardedOptimizer(parameters, torch.optim.SGD, overlap_with_ddp=True, world=world)


PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from kadril.sharded import ShardedOptimizer

dist.init_process_group("gloo")
for Optimizer in (ZeroRedundancyOptimizer, ShardedOptimizer):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    optimizer = Optimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(step + dist.get_rank()))).square().sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), f"{sys.argv[1]}/{Optimizer.__name__}.pt")
dist.barrier()  # gloo of torch 2.13 may abort where one rank ends while another still works
dist.destroy_process_group()
"""


def test_users_of_torchs_class_change_one_line(tmp_path: Path) -> None:
    """A program under torchrun, with that class and with ours: the same weights."""
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node", "2", tmp_path / "program.py", tmp_path],
        check=True,
        timeout=100,
    )
    names = ("ZeroRedundancyOptimizer", "ShardedOptimizer")
    theirs, ours = (torch.load(tmp_path / f"{name}.pt") for name in names)
    assert_same(ours.values(), theirs.values())
