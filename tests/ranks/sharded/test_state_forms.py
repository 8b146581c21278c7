"""State from elsewhere, or in another form: it goes to the right parameters, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_kit import assert_same, backward
from sharded_kit import make_parameters, pull_of
from torch import nn

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer, ShardedOptimizer, dcp
from kadril.testing import ranks
from kadril.world import World

SHAPES = ((3,), (50,))


def ways_to_restore(path: Path, world: World) -> list[Callable[[POS_Trainer, POS_Trainer], None]]:
    """All that bring the state of one trainer into another; collective."""

    def by_file(old: POS_Trainer, new: POS_Trainer) -> None:
        old.save(path / "own")
        new.load(path / "own")

    def by_torch(old: POS_Trainer, new: POS_Trainer) -> None:
        dcp.save({"optim": old}, path / "dcp", world=world)
        dcp.load({"optim": new}, path / "dcp", world=world)

    def by_part(old: POS_Trainer, new: POS_Trainer) -> None:
        new.load_state_dict(old.state_dict())

    return [by_file, by_torch, by_part]


@ranks(2)
def test_groups_may_be_empty(world: World, tmp_path: Path) -> None:
    """Weights with decay and biases without, of a model that has no biases."""

    def make() -> tuple[list[nn.Parameter], POS_Trainer]:
        parameters = make_parameters(SHAPES)
        groups = [
            {"params": parameters, "weight_decay": 0.5},
            {"params": [], "weight_decay": 0.0},
        ]
        return parameters, POS_Trainer(groups, "adamw", {"lr": 0.1}, world=world)

    for restore in ways_to_restore(tmp_path, world):
        parameters, trainer = make()
        backward(parameters, pull_of(world.rank, 0, 2, SHAPES))
        trainer.step()
        fresh = make()[1]
        restore(trainer, fresh)
        assert [group["weight_decay"] for group in fresh.param_groups] == [0.5, 0.0]
        assert_same(state_of(fresh), state_of(trainer))


def state_of(trainer: POS_Trainer) -> list[torch.Tensor]:
    """Tensors of this rank's part of the state."""
    state = trainer.optimizer.state
    pieces = [each for group in trainer.param_groups for each in group["params"]]
    return [v for piece in pieces for v in state[piece].values() if isinstance(v, torch.Tensor)]


class Masters(torch.optim.Optimizer):
    """Steps float32 copies of parameters that have fewer bits, as many users' optimizers do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    state = self.state[each]
                    if not state:
                        state["master"] = each.detach().float()
                    state["master"] -= group["lr"] * each.grad.float()
                    each.copy_(state["master"])


@ranks(2)
def test_state_keeps_its_dtypes(world: World, tmp_path: Path) -> None:
    """Torch casts what it loads to the dtype of parameters: float32 beside bfloat16 lost bits."""
    for kind in ("nadam", "asgd", "adam", Masters):
        for dtype in (torch.bfloat16, torch.float16):
            shapes = ((48,), (7, 9))
            for restore in ways_to_restore(tmp_path, world):
                parameters = make_parameters(shapes, dtype)
                trainer = POS_Trainer(parameters, kind, {"lr": 0.07}, world=world)
                for step in range(3):
                    backward(parameters, pull_of(world.rank, step, 2, shapes, dtype))
                    trainer.step()
                again = [nn.Parameter(each.detach().clone()) for each in parameters]
                fresh = POS_Trainer(again, kind, {"lr": 0.07}, world=world)
                restore(trainer, fresh)
                expected = state_of(trainer)
                assert [each.dtype for each in state_of(fresh)] == [e.dtype for e in expected]
                assert_same(state_of(fresh), expected)


@ranks(2)
def test_numbers_are_those_of_the_order_given(world: World) -> None:
    """A dict is taken in the order of its names, in which '10' comes before '2'.

    A plain optimizer numbers parameters as the model has them: state went to others of equal shape.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(12)])
    other_model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(12)])
    other_model.load_state_dict(model.state_dict())
    trainer = POS_Trainer(dict(model.named_parameters()), "adam", {"lr": 0.1}, world=world)
    named = torch.optim.Adam(other_model.named_parameters(), lr=0.1)
    unnamed = torch.optim.Adam(other_model.parameters(), lr=0.1)
    for place, each in enumerate(other_model.parameters()):
        each.grad = torch.full_like(each, float(place + 1))
    named.step()
    unnamed.step()
    for plain in (named, unnamed):
        trainer.load_state_dict(plain.state_dict())
        state = trainer.consolidate()
        if world.rank == 0:
            fresh = torch.optim.Adam(other_model.parameters(), lr=0.1)
            fresh.load_state_dict(state)
            for each in other_model.parameters():
                assert torch.equal(fresh.state[each]["exp_avg"], plain.state[each]["exp_avg"])
    # By name also where the trainer has another order; and never by half of the names.
    trainer.close()
    other = POS_Trainer(dict(reversed(list(model.named_parameters()))), "adam", world=world)
    other.load_state_dict(named.state_dict())
    state = other.consolidate()
    if world.rank == 0:
        place = other.names.index("10.weight")
        expected = named.state[other_model[10].weight]["exp_avg"]
        assert torch.equal(state["state"][place]["exp_avg"], expected)
    strange = named.state_dict()
    strange["param_groups"][0]["param_names"] = ["x", *trainer.names[1:]]
    with pytest.raises(CheckpointError, match="'x'"):
        trainer.load_state_dict(strange)


@ranks(2)
def test_groups_in_another_order_are_noticed(world: World, tmp_path: Path) -> None:
    def make(order: tuple[int, int]) -> POS_Trainer:
        parameters = make_parameters(((3,), (3,)))
        groups = [{"params": [(f"p{n}", parameters[n])], "lr": 0.1 * (n + 1)} for n in order]
        return POS_Trainer(groups, "sgd", {"momentum": 0.5}, world=world)

    for restore in ways_to_restore(tmp_path, world):
        other = make((1, 0))
        with pytest.raises(CheckpointError, match=r"'p[01]' is in parameter group [01], but in"):
            restore(make((0, 1)), other)
        assert [group["lr"] for group in other.param_groups] == [0.2, 0.1]


@ranks(2)
def test_trainers_are_not_copied(world: World) -> None:
    import copy
    import pickle

    from kadril.errors import UnsupportedError

    trainer = POS_Trainer(make_parameters(SHAPES), "adam", world=world)
    optimizer = ShardedOptimizer(make_parameters(SHAPES), torch.optim.Adam, world=world)
    for each in (trainer, optimizer):
        for copier in (copy.deepcopy, pickle.dumps):
            with pytest.raises(UnsupportedError, match="belongs to its world"):
                copier(each)
