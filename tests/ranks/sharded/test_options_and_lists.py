"""Options that are held in two places or said in other words, lists of parameters, and norms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_kit import assert_same, backward
from sharded_kit import make_parameters, pull_of

from kadril.errors import StateError
from kadril.sharded import POS_Trainer, ShardedOptimizer
from kadril.sharded.optimizer.clip import total_norm
from kadril.sharded.optimizer.option_names import groups_in_torch_words
from kadril.sharded.ownership.parameter_groups import read_groups
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.testing import ranks
from kadril.world import World

SHAPES = ((3,), (50,))


def make_optimizer(
    world: World, parameters: list[torch.nn.Parameter], **options: Any
) -> ShardedOptimizer:
    return ShardedOptimizer(
        parameters, torch.optim.AdamW, reduce_gradients=True, world=world, **options
    )


def take_step(optimizer: ShardedOptimizer, parameters: list[torch.nn.Parameter], step: int) -> None:
    optimizer.zero_grad()
    trainer = optimizer.trainer
    backward(parameters, pull_of(trainer.rank, step, trainer.size, SHAPES))
    optimizer.step()


# ---- options of ShardedOptimizer ----------------------------------------------------------------


@ranks(2)
def test_saved_options_are_those_that_a_scheduler_has_set(world: World, tmp_path: Path) -> None:
    """The trainer within knew of a scheduler's step at the next step only, and saved the old lr."""
    parameters = make_parameters(SHAPES)
    optimizer = make_optimizer(world, parameters, lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    take_step(optimizer, parameters, 0)
    scheduler.step()
    optimizer.save(tmp_path / "c", {"epoch": 3})
    restored = make_optimizer(world, make_parameters(SHAPES), lr=0.125)
    assert restored.load(tmp_path / "c") == {"epoch": 3}
    assert restored.param_groups[0]["lr"] == restored.trainer.learning_rate == 0.25


@ranks(2)
def test_loaded_options_and_state_are_stepped_with(world: World, tmp_path: Path) -> None:
    """The step after a load brought the options of the constructor back, and `state` was stale."""
    parameters, again = make_parameters(SHAPES), make_parameters(SHAPES)
    optimizer = make_optimizer(world, parameters, lr=0.5, betas=(0.5, 0.75))
    take_step(optimizer, parameters, 0)
    optimizer.save(tmp_path / "c")
    restored = make_optimizer(world, again, lr=0.125)
    restored.consolidate_state_dict()
    restored.load(tmp_path / "c")
    with pytest.raises(StateError, match=r"save each part with optimizer\.save\(\)"):
        restored.state_dict()  # of before
    assert restored.state is restored.trainer.optimizer.state
    assert restored.param_groups[0]["params"] == again
    for each, tensors in ((optimizer, parameters), (restored, again)):
        take_step(each, tensors, 1)
    assert restored.param_groups[0]["lr"] == 0.5
    assert restored.param_groups[0]["betas"] == (0.5, 0.75)
    assert_same(parameters, again)


@ranks(2)
def test_a_consolidated_state_has_the_options_of_now(world: World) -> None:
    """A scheduler that stepped after consolidation was not heard, and added groups were missing."""
    parameters = make_parameters(SHAPES)
    optimizer = make_optimizer(world, parameters[:1], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    optimizer.consolidate_state_dict(to=1)
    scheduler.step()
    if world.rank == 1:
        (group,) = optimizer.state_dict()["param_groups"]
        assert (group["lr"], group["params"]) == (0.25, [0])
        torch.optim.AdamW(make_parameters(SHAPES[:1])).load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": parameters[1:]})
    with pytest.raises(StateError, match="consolidate_state_dict"):
        optimizer.state_dict()


# ---- lists --------------------------------------------------------------------------------------


@ranks(2)
def test_sets_are_refused(world: World) -> None:
    """A set goes by addresses: ranks mixed up parameters of one shape, and nobody noticed."""
    parameters = make_parameters(((3,), (3,)))
    for kind in (set, frozenset):
        wrong: list[Any] = [kind(parameters), [{"params": kind(parameters)}]]
        for each in wrong:
            with pytest.raises(TypeError, match=f"in a {kind.__name__}, .* give a list"):
                POS_Trainer(each, "sgd", world=world)
    trainer = POS_Trainer(parameters[:1], "sgd", world=world)
    with pytest.raises(TypeError, match="give a list"):
        trainer.add_param_group({"params": set(parameters[1:])})


def test_numbers_go_on_after_all_items() -> None:
    """[a, a, b] has the names 0 and 2: two parameters, and the next number is not 2."""
    a, b, c = make_parameters(((1,), (2,), (3,)))
    listed = ParameterList()
    (group,) = read_groups([a, a, b])
    listed.add_group(group._replace(names=["net." + name for name in group.names]))
    assert listed.names == ["net.parameter.0", "net.parameter.2"]
    assert listed.next_number == 3
    assert read_groups([c], first=listed.next_number)[0].names == ["parameter.3"]
    named = ParameterList()
    named.add_group(read_groups([("x", a), ("parameter.y", b)])[0])
    assert named.next_number == 2


@ranks(2)
def test_a_group_is_added_to_a_list_with_a_parameter_twice(world: World) -> None:
    """Such a group was refused: "two parameters are called 'parameter.2'"."""
    a, b, c, d = make_parameters(((3,), (4,), (5,), (6,)))
    trainer = POS_Trainer([a, a, b], "sgd", {"lr": 0.5}, world=world)
    trainer.add_param_group({"params": [c, c]})
    trainer.add_param_group({"params": [d]})
    assert trainer.names == ("parameter.0", "parameter.2", "parameter.3", "parameter.4")


# ---- options of groups --------------------------------------------------------------------------


def test_options_of_groups_are_translated() -> None:
    """Names have their options translated; groups of a class may have anything, as torch's do."""
    (parameter,) = make_parameters(((3,),))
    given = {"learning_rate": 0.5, "wd": 0.25, "beta1": 0.5, "name": "head", "initial_lr": 1.0}
    groups = read_groups([{"params": [parameter], **given}])
    (group,) = groups_in_torch_words("adam", groups, {"betas": (0.75, 0.875)})
    assert group.options == {
        "lr": 0.5,
        "weight_decay": 0.25,
        "betas": (0.5, 0.875),
        "name": "head",
        "initial_lr": 1.0,
    }
    assert groups_in_torch_words(torch.optim.Adam, groups, {}) == groups


@ranks(2)
def test_groups_take_the_words_of_gluon(world: World) -> None:
    """`learning_rate` in a group was kept as an option that no optimizer looks at."""
    a, b, c = parameters = make_parameters(((3,), (4,), (5,)))
    trainer = POS_Trainer(
        [{"params": [a], "learning_rate": 0.125}, {"params": [b]}],
        "sgd",
        {"learning_rate": 0.5},
        world=world,
    )
    trainer.add_param_group({"params": [c], "learning_rate": 0.25})
    assert [group["lr"] for group in trainer.param_groups] == [0.125, 0.5, 0.25]
    before = [each.detach().clone() for each in parameters]
    backward(parameters, [torch.ones_like(each) for each in parameters])
    trainer.step()
    assert_same(parameters, [p - lr for p, lr in zip(before, (0.125, 0.5, 0.25), strict=True)])


# ---- norms --------------------------------------------------------------------------------------


@ranks(2)
def test_a_norm_that_is_too_large_is_infinite(world: World) -> None:
    """Python raised OverflowError on the rank that had it, while others waited for that rank."""

    def norm_of(numbers: list[float], norm_type: float) -> float:
        mine = numbers if world.rank else [1.0]
        gradients = [torch.tensor([each], dtype=torch.float64) for each in mine]
        return total_norm(world.transport, gradients, norm_type)

    assert norm_of([1e200], 2.0) == math.inf
    assert norm_of([1e154, 1e154, 1e154], 2.0) == math.inf  # the sum of finite squares
    assert norm_of([1e200], 0.5) == pytest.approx(1e200)
    assert norm_of([1e308, 1e308], 0.5) == math.inf  # the root of a finite sum
    assert norm_of([0.0], -1.0) == 0.0
    assert norm_of([], 2.0) == 1.0


@ranks(2)
def test_the_norm_of_minus_infinity_is_a_minimum(world: World) -> None:
    """The norm was a maximum, with a zero for ranks that have no gradients."""
    gradients = [torch.tensor([-5.0, 3.0]) + world.rank, torch.empty(0)]
    together = torch.tensor([-5.0, 3.0, -4.0, 4.0])
    expected = float(torch.linalg.vector_norm(together, -math.inf))
    assert total_norm(world.transport, gradients, -math.inf) == expected == 3.0
    alone = gradients if world.rank else []
    assert total_norm(world.transport, alone, -math.inf) == 4.0
    nan = [torch.tensor([math.nan])] if world.rank else gradients
    assert math.isnan(total_norm(world.transport, nan, -math.inf))
    for norm_type in (-math.inf, math.inf, -1.0, 0.0, 2.0):
        assert total_norm(world.transport, [], norm_type) == 0.0  # as torch has it
