"""Whoever looks for gradients that stage 2 gave away is told, once."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from kadril.sharded import POS_Trainer, ShardedOptimizer
from kadril.testing import ranks
from kadril.world import World

X = torch.ones(2, 4)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))


def look_by_zeroing(model: nn.Module) -> None:
    model.zero_grad()


def look_by_reading(model: nn.Module) -> object:
    return next(model.parameters()).grad


@ranks(2, transports=("shm", "c10d"))
def test_a_clip_that_clips_nothing_says_so(world: World) -> None:
    """The clip returned 0.0 and said nothing, and training went on without one."""
    model = make_model()
    trainer = POS_Trainer(model, "sgd", {"lr": 0.5}, world=world)
    for step in range(2):
        model(X).sum().backward()
        if step == 0:
            with pytest.warns(
                UserWarning, match=r"clip_grad_norm_\(\) and zero_grad\(\) of the tr"
            ):
                assert clip_grad_norm_(model.parameters(), 0.1) == 0
        clip_grad_norm_(model.parameters(), 0.1)  # told already
        assert trainer.clip_grad_norm_(0.1) > 0.1
        trainer.step()


@ranks(2)
@pytest.mark.parametrize("look", [look_by_zeroing, look_by_reading])
def test_others_that_look_in_vain(world: World, look: Callable[[nn.Module], object]) -> None:
    model = make_model()
    optimizer = ShardedOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.5, reduce_gradients=True, world=world
    )
    model(X).sum().backward()
    with pytest.warns(UserWarning, match="with stage 2 gradients are"):
        look(model)
    optimizer.step()


@ranks(2)
def test_usual_programs_hear_nothing(world: World) -> None:
    """Warnings are errors in these tests: none comes where nothing is missed."""
    model = make_model()
    trainer = POS_Trainer(model, "adam", {"lr": 0.5}, world=world)
    for _ in range(2):
        model.zero_grad()
        for _ in range(2):
            model(X).sum().backward()
        trainer.clip_grad_norm_(1.0)
        trainer.step()
        assert model[0].weight.grad is None
        clip_grad_norm_(model.parameters(), 1.0)
    kept = make_model()
    stage1 = POS_Trainer(kept, "sgd", {"lr": 0.5}, stage=1, world=world)
    kept(X).sum().backward()
    assert clip_grad_norm_(kept.parameters(), 1.0) > 0
    stage1.step()


@ranks(2)
def test_parameters_are_torchs_for_everybody_else(world: World) -> None:
    """Copies, files and text are those of ordinary parameters, and so is a parameter given back."""
    model, plain = make_model(), make_model()
    trainer = POS_Trainer(model, "sgd", {"lr": 0.5}, world=world)
    model(X).sum().backward()
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copied, loaded):
        assert all(type(each) is nn.Parameter for each in other.parameters())
        assert other[0].weight.grad is None  # nobody took it
    assert repr(model[0].bias) == repr(plain[0].bias)
    assert isinstance(model[0].bias, nn.Parameter)
    trainer.step()
    trainer.close()
    assert all(type(each) is nn.Parameter for each in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X).sum().backward()
    assert model[0].weight.grad is not None


@ranks(2)
def test_a_scheduler_over_a_trainer(world: World) -> None:
    """Torch said that a POS_Trainer is not an Optimizer; schedulers take it now."""
    model = make_model()
    trainer = POS_Trainer(model, "sgd", {"lr": 1.0}, world=world)
    scheduler = torch.optim.lr_scheduler.StepLR(trainer, step_size=1, gamma=0.5)
    rates = []
    for _ in range(3):
        model(X).sum().backward()
        trainer.step(2)
        scheduler.step()
        rates.append(trainer.learning_rate)
    assert rates == [0.5, 0.25, 0.125]
    assert trainer.num_steps == 3
