"""Loads and saves that do not fit: all ranks hear of it, and training continues as before.

And what only looks as if it did not fit: state of other versions of torch, and of schedulers.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import contents, everything, make_trainer, train_more
from gradient_kit import assert_same, backward
from sharded_kit import make_parameters, pull_of, train
from torch import nn

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer, ShardedOptimizer, dcp
from kadril.testing import ranks
from kadril.world import World

SHAPES = ((3,), (4, 5))


def make(
    world: World, optimizer: Any = "adam", **options: Any
) -> tuple[dict[str, nn.Parameter], POS_Trainer]:
    parameters = dict(zip(("a", "b"), make_parameters(SHAPES), strict=True))
    return parameters, POS_Trainer(parameters, optimizer, {"lr": 0.125}, world=world, **options)


@ranks(2)
def test_gradients_of_parameters_that_are_gone_are_dropped(world: World, tmp_path: Path) -> None:
    """A loss goes to NaN, clipping tells, the last checkpoint is loaded: the NaN went with it.

    dcp.load kept reduced gradients, so that the first step after it made NaN of all parameters.
    """
    for stage in (2, 1):
        parameters, trainer = make(world, stage=stage)
        state = {"model": parameters, "optim": trainer}
        train(trainer, [*parameters.values()], range(2), shapes=SHAPES)
        dcp.save(state, tmp_path / f"{stage}", world=world)
        train(trainer, [*parameters.values()], [2], shapes=SHAPES)
        expected = [each.detach().clone() for each in parameters.values()]
        trainer.zero_grad()
        backward(parameters.values(), [torch.full(shape, torch.nan) for shape in SHAPES])
        assert torch.isnan(trainer.clip_grad_norm_(1.0))
        dcp.load(state, tmp_path / f"{stage}", world=world)
        assert [each.grad for each in parameters.values()] == [None, None]
        backward(parameters.values(), pull_of(world.rank, 2, world.size, shapes=SHAPES))
        trainer.step()
        assert_same(parameters.values(), expected)


@ranks(2)
def test_gradients_are_dropped_under_the_front_of_torchs_class(
    world: World, tmp_path: Path
) -> None:
    """The same by ShardedOptimizer, whose trainer is the one to drop them, on one pass of many."""
    parameters = make_parameters(SHAPES)
    named = dict(zip(("a", "b"), parameters, strict=True))
    optimizer = ShardedOptimizer(named.items(), torch.optim.SGD, lr=0.5, world=world)
    state = {"model": named, "optim": optimizer}
    dcp.save(state, tmp_path / "c", world=world)
    before = [each.detach().clone() for each in parameters]
    backward(parameters, [torch.full(shape, torch.nan) for shape in SHAPES])
    dcp.load(state, tmp_path / "c", world=world)
    backward(parameters, [torch.ones(shape) for shape in SHAPES])
    optimizer.step()
    assert_same(parameters, [each - 0.5 for each in before])


class Own:
    """An object of a user, which may refuse its state."""

    def __init__(self, number: int, parameter: torch.Tensor | None = None) -> None:
        self.number = number
        self.parameter = parameter
        self.refuses = False
        self.seen: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        parameter = {} if self.parameter is None else {"parameter": self.parameter.detach()}
        return {"number": self.number, **parameter}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.refuses:
            raise RuntimeError("made by version 1")
        self.number = state_dict["number"]
        if self.parameter is not None:
            self.seen = state_dict["parameter"].clone()


@ranks(2)
def test_an_object_that_refuses_its_state_is_an_error_on_all(world: World, tmp_path: Path) -> None:
    """One rank raised, after parameters were overwritten, and the others waited for it."""
    trainer = make_trainer(world)
    own = Own(5)
    dcp.save({**everything(trainer), "own": own, "epoch": 1}, tmp_path / "c", world=world)
    train_more(trainer)
    before = contents(trainer)
    own.refuses = world.rank == 1
    own.number = 0
    state = {**everything(trainer), "own": own, "epoch": 2}
    with pytest.raises(CheckpointError, match=r"load_state_dict\(\) of 'own' raised .*version 1"):
        dcp.load(state, tmp_path / "c", world=world)
    assert_same(contents(trainer), before)
    assert state["epoch"] == 2
    own.refuses = False
    dcp.load(state, tmp_path / "c", world=world)
    assert (own.number, state["epoch"]) == (5, 1)
    assert not torch.equal(contents(trainer)[0], before[0])


@ranks(2)
def test_objects_with_parameters_see_those_that_were_loaded(world: World, tmp_path: Path) -> None:
    """A user's wrapper of a model looks at the weights it is given; where it raises, all do."""
    trainer = make_trainer(world)
    parameter = everything(trainer)["model"]["a"]
    own = Own(5, parameter)
    dcp.save({"optim": trainer, "own": own}, tmp_path / "c", world=world)
    saved = parameter.detach().clone()
    train_more(trainer)
    dcp.load({"own": own, "optim": trainer}, tmp_path / "c", world=world)
    assert own.seen is not None
    assert_same([own.seen, parameter], [saved, saved])
    own.refuses = world.rank == 1
    with pytest.raises(CheckpointError, match=r"load_state_dict\(\) of 'own' raised"):
        dcp.load({"own": own, "optim": trainer}, tmp_path / "c", world=world)


def without(group: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in names}


@ranks(2)
def test_state_of_older_torch_with_what_schedulers_add(world: World) -> None:
    """Adam of torch 2.5 lacks an option, OneCycleLR adds some; together they were refused."""
    parameters, trainer = make(world)
    train(trainer, [*parameters.values()], range(1), shapes=SHAPES)
    shard = trainer.state_dict()
    (group,) = shard["param_groups"]
    added = {"initial_lr": 0.5, "max_lr": 0.5, "min_lr": 0.1, "max_momentum": 0.9, "swa_lr": 0.1}
    for lacking in (("decoupled_weight_decay",), ("decoupled_weight_decay", "fused", "maximize")):
        for more in (added, {"name": "decoder"}, {**added, "layer_decay": 0.5}):
            older = {**without(group, *lacking), **more}
            trainer.load_state_dict({"state": shard["state"], "param_groups": [older]})
            assert trainer.param_groups[0].items() >= more.items()
            train(trainer, [*parameters.values()], [1], shapes=SHAPES)
    # Of other optimizers: of NAdam, and of one that nobody knows.
    for lacking, more in ((("amsgrad", "fused"), "momentum_decay"), (("eps",), "cautious")):
        other = {**without(group, *lacking), more: 0.5}
        with pytest.raises(CheckpointError, match=f"{more!r} and without '({'|'.join(lacking)})'"):
            trainer.load_state_dict({"state": shard["state"], "param_groups": [other]})


@ranks(2)
def test_plain_state_of_another_optimizer_is_refused(world: World) -> None:
    """Adam took the groups of SGD, of the same parameters, and died in the next step: no betas."""
    parameters, trainer = make(world)
    train(trainer, [*parameters.values()], range(1), shapes=SHAPES)
    before = contents(trainer)
    options = [without(group, "params") for group in trainer.param_groups]
    for momentum in (0.0, 0.5):
        alone = make_parameters(SHAPES)
        optimizer = torch.optim.SGD(alone, lr=0.5, momentum=momentum)
        backward(alone, [torch.ones(shape) for shape in SHAPES])
        optimizer.step()
        with pytest.raises(CheckpointError, match="and without 'betas'; the trainer has Adam"):
            trainer.load_state_dict(optimizer.state_dict())
    assert_same(contents(trainer), before)
    assert [without(group, "params") for group in trainer.param_groups] == options
    train(trainer, [*parameters.values()], [1], shapes=SHAPES)


@ranks(2)
def test_plain_state_of_another_version_of_torch_is_taken(world: World) -> None:
    """Adam of older torch lacks options, that of newer has more, a scheduler was used with both."""
    for change in ({"initial_lr": 0.5}, {"an_option_of_torch_9": True}):
        for lacking in ((), ("decoupled_weight_decay", "differentiable", "fused")):
            alone = make_parameters(SHAPES)
            optimizer = torch.optim.Adam(alone, lr=0.125, fused=True)
            backward(alone, [torch.ones(shape) for shape in SHAPES])
            optimizer.step()
            plain = copy.deepcopy(optimizer.state_dict())  # torch hands out what it counts with
            plain["param_groups"] = [{**without(plain["param_groups"][0], *lacking), **change}]
            parameters, trainer = make(world)
            for mine, other in zip(parameters.values(), alone, strict=True):
                mine.data.copy_(other.data)
            world.transport.barrier()
            trainer.load_state_dict(plain)
            for each in ([*parameters.values()], alone):
                for parameter in each:
                    parameter.grad = None
                backward(each, [torch.ones(shape) for shape in SHAPES])
            optimizer.step()
            trainer.step()
            assert_same(parameters.values(), alone)


class Hoarder(torch.optim.SGD):
    """An optimizer of a user that keeps what JSON cannot hold, in the state of matrices."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.numel() == 20:
                    self.state[parameter]["seen"] = {1, 2}
        return super().step(closure)


@ranks(2)
def test_state_that_cannot_be_saved_is_an_error_on_all(world: World, tmp_path: Path) -> None:
    """Such state was a TypeError on the rank that owns the matrix; the other one waited for it."""
    parameters, trainer = make(world, Hoarder)
    trainer.save(tmp_path / "c", {"number": 1})
    train(trainer, [*parameters.values()], range(1), shapes=SHAPES)
    owns = "b" in trainer.state_dict()["state"]
    with pytest.raises(CheckpointError, match="'seen' in the state of parameter 'b' cannot") as e:
        trainer.save(tmp_path / "c", {"number": 2})
    assert e.value.parameter == ("b" if owns else "")
    with pytest.raises(CheckpointError, match="'seen' in the state of parameter 'b' cannot"):
        trainer.consolidate()
    assert trainer.load(tmp_path / "c") == {"number": 1}


@ranks(2)
def test_options_that_cannot_be_saved_are_an_error_on_all(world: World, tmp_path: Path) -> None:
    """Only rank 0 writes options; a tensor of several numbers raised there in a way of its own."""
    _, trainer = make(world)
    trainer.param_groups[0]["rates"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        trainer.save(tmp_path / "c")
