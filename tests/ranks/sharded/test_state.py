"""State of a sharded optimizer is that of the plain one, cut; it may be cut anew in any way."""

from __future__ import annotations

import pickle

import pytest
import torch
from gradient_kit import assert_same
from sharded_kit import (
    OPTIMIZERS,
    OTHER_OPTIMIZERS,
    SHAPES,
    SmallerWorld,
    make_parameters,
    train,
    trained_alone,
)

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.transport.agreement import allgather_blobs
from kadril.world import World


def assert_same_state(found: dict, expected: dict) -> None:
    """Two plain state_dicts, to the last bit."""
    assert found["state"].keys() == expected["state"].keys()
    for place, values in expected["state"].items():
        assert found["state"][place].keys() == values.keys()
        for key, value in values.items():
            other = found["state"][place][key]
            if isinstance(value, torch.Tensor):
                assert other.shape == value.shape, (place, key)
                assert torch.equal(other, value), (place, key)
            else:
                assert other == value, (place, key)
    for group, other in zip(found["param_groups"], expected["param_groups"], strict=True):
        assert group["params"] == other["params"]
        assert group["lr"] == other["lr"]


@ranks(1, 2, 3)
def test_consolidated_state_is_that_of_the_plain_optimizer(world: World) -> None:
    for name, options in OPTIMIZERS + OTHER_OPTIMIZERS:
        for rule in (None, "greedy"):
            if name == "Adafactor" and rule is None:
                continue
            # Adafactor divides by the number of elements.
            shapes = SHAPES[:3] if name == "Adafactor" else ((3,), (2, 5), (), (0,), (1021,))
            parameters = make_parameters(shapes)
            trainer = POS_Trainer(parameters, name, options, world=world, rule=rule)
            train(trainer, parameters, range(2), shapes=shapes)
            expected, optimizer = trained_alone(name, options, 2, world.size, shapes=shapes)
            assert_same(parameters, expected)
            to = world.size - 1
            found = trainer.consolidate(to)
            if world.rank == to:
                assert_same_state(found, optimizer.state_dict())
            else:
                assert found is None


@ranks(1, 2, 3)
def test_state_of_a_plain_optimizer_is_taken_over(world: World) -> None:
    """Two steps alone, the third on ranks: as three steps alone."""
    for name, options in OPTIMIZERS[1:4]:
        for rule in ("flat", "largest_first"):
            begun, optimizer = trained_alone(name, options, 2, world.size)
            parameters = [torch.nn.Parameter(each.detach().clone()) for each in begun]
            other = {**options, "lr": 7.0}  # the state brings its own
            trainer = POS_Trainer(parameters, name, other, world=world, rule=rule)
            trainer.load_state_dict(optimizer.state_dict())
            assert trainer.learning_rate == options["lr"]
            train(trainer, parameters, [2])
            expected, _ = trained_alone(name, options, 3, world.size)
            assert_same(parameters, expected)


@ranks(3)
def test_state_moves_between_worlds_of_any_size(world: World) -> None:
    """Two ranks begin, any number goes on, whatever their rule: as if nothing had happened."""
    name, options = OPTIMIZERS[3]
    first = SmallerWorld(world, 2)
    begun = make_parameters()
    shard = None
    if first.is_member:
        starter = POS_Trainer(begun, name, options, world=first)
        train(starter, begun, range(2))
        shard = starter.state_dict()
    shards = [pickle.loads(each) for each in exchange_pickles(world, shard)][:2]  # noqa: S301
    values = [torch.nn.Parameter(each.detach().clone()) for each in begun]
    for size, rule in ((1, "flat"), (2, "greedy"), (3, "flat"), (3, "largest_first")):
        part = SmallerWorld(world, size)
        if not part.is_member:
            continue
        parameters = [torch.nn.Parameter(each.detach().clone()) for each in values]
        trainer = POS_Trainer(parameters, name, options, world=part, rule=rule)
        trainer.load_state_dict(shards)
        expected, optimizer = trained_alone(name, options, 2, 2)
        found = trainer.consolidate()
        if part.rank == 0:
            assert_same_state(found, optimizer.state_dict())
            assert_same(parameters, expected)


def exchange_pickles(world: World, value: object) -> list[bytes]:
    """Return what each rank has, on every rank."""
    return allgather_blobs(world.transport, pickle.dumps(value), "pickles")


@ranks(2)
def test_state_that_does_not_fit_is_refused_by_name(world: World) -> None:
    shapes = ((3,), (2, 5))
    parameters = make_parameters(shapes)
    named = dict(zip(("a", "b"), parameters, strict=True))
    trainer = POS_Trainer(named, "adam", world=world)
    train(trainer, parameters, range(1), shapes=shapes)
    before = trainer.consolidate()
    other = make_parameters(((3,), (2, 6)))
    optimizer = torch.optim.Adam(other)
    for parameter in other:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises(
        CheckpointError, match=r"'exp_avg' of parameter 'b' has shape \(2, 6\)"
    ) as e:
        trainer.load_state_dict(optimizer.state_dict())
    assert e.value.parameter == "b"
    with pytest.raises(CheckpointError, match="has 1 parameters, the trainer has 2"):
        trainer.load_state_dict(torch.optim.Adam(other[:1]).state_dict())
    shard = trainer.state_dict()
    state, (group,) = shard["state"], shard["param_groups"]
    shorter = {**group, "params": ["a"]}
    unlike = {key: value for key, value in group.items() if key != "betas"} | {"momentum": 0.5}
    elsewhere = pickle.loads(exchange_pickles(world, shard)[1 - world.rank])  # noqa: S301
    cases = [
        ([shard], r"of parameter '[ab]'", "ab"),
        ([shard, shard], r"are of ranks \[(0, 0|1, 1)\]; give that of each rank once", ""),
        ({"state": state, "param_groups": [shorter]}, "no state for parameter 'b'", "b"),
        (
            {"state": state, "param_groups": [{**group, "params": ["a", "b", "c"]}]},
            "a parameter 'c', which the trainer does not have",
            "c",
        ),
        (
            {"state": state, "param_groups": [unlike]},
            "option 'momentum' and without 'betas'; the trainer has Adam",
            "",
        ),
        (elsewhere, f"that of rank {1 - world.rank} of 2 with rule 'flat'", ""),
        ({"pieces": {}}, "no state_dict of a torch optimizer", ""),
        ([], "no state_dict of a torch optimizer", ""),
    ]
    for given, words, name in cases:
        with pytest.raises(CheckpointError, match=words) as e:
            trainer.load_state_dict(given)
        assert e.value.parameter in name
        assert bool(e.value.parameter) == bool(name)
    after = trainer.consolidate()
    if world.rank == 0:
        assert_same_state(after, before)
    trainer.load_state_dict(shard)
