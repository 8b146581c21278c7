"""Sharded training has the bits of one process that sees the mean of all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import assert_same, backward, two_layers
from sharded_kit import (
    OPTIMIZERS,
    make_parameters,
    mean_of_step,
    one_process,
    plain,
    pull_of,
    train,
    trained_alone,
)

from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.world import World

NUM_STEPS = 3


def check(world: World, name: str, options: dict[str, Any], **how: Any) -> POS_Trainer:
    parameters = make_parameters()
    trainer = POS_Trainer(parameters, name.lower(), options, world=world, **how)
    train(trainer, parameters, range(NUM_STEPS))
    assert_same(parameters, trained_alone(name, options, NUM_STEPS, world.size)[0])
    return trainer


@ranks(1, 2, 3)
def test_every_optimizer_has_the_bits_of_one_process(world: World) -> None:
    for name, options in OPTIMIZERS:
        trainer = check(world, name, options)
        assert trainer.optimizer.param_groups[0]["fused"]
    check(world, "Adam", {"lr": 0.1, "foreach": True, "fused": None})


@ranks(1, 2, 3)
def test_every_stage_rule_and_memory_has_the_bits_of_one_process(world: World) -> None:
    for rule in ("flat", "greedy", "largest_first"):
        for how in ({}, {"stage": 1}, {"share_parameters": False}):
            check(world, *OPTIMIZERS[3], rule=rule, **how)
    check(world, *OPTIMIZERS[2], gradient_predivide_factor=2.0)


@ranks(2, 3, transports=("c10d", "mpi:openmpi"))
def test_the_same_on_other_transports(world: World) -> None:
    for rule in ("flat", "greedy"):
        trainer = check(world, *OPTIMIZERS[3], rule=rule)
    assert not any(bucket.is_shared for bucket in trainer.shards.buckets)
    check(world, *OPTIMIZERS[1], stage=1)


@ranks(2)
def test_dtypes_have_buckets_of_their_own(world: World) -> None:
    shapes = ((3, 40), (7,), ())
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        for name, options in (("AdamW", {"lr": 0.125}), ("SGD", {"lr": 0.5, "momentum": 0.5})):
            kind = {"shapes": shapes, "dtype": dtype}
            parameters = make_parameters(**kind)
            beside = make_parameters(((5,),))
            trainer = POS_Trainer(parameters + beside, name, options, world=world)
            for step in range(3):
                backward(parameters, pull_of(world.rank, step, 2, **kind))
                backward(beside, pull_of(world.rank, step, 2, ((5,),)))
                trainer.step()
            means = [mean_of_step(step, 2, **kind) for step in range(3)]
            assert_same(parameters, one_process(plain(name, options), means, **kind)[0])


@ranks(1, 2, 3)
def test_fifty_steps_have_the_bits_of_one_process(world: World) -> None:
    shapes = ((3,), (7, 9), (), (131,))
    means = [mean_of_step(step, world.size, shapes=shapes) for step in range(50)]
    for name, options in OPTIMIZERS:
        expected, _ = one_process(plain(name, options), means, shapes)
        for stage in (1, 2):
            parameters = make_parameters(shapes)
            trainer = POS_Trainer(parameters, name, options, world=world, stage=stage)
            train(trainer, parameters, range(50), shapes=shapes)
            assert_same(parameters, expected)


@ranks(2, 3)
def test_fifty_steps_of_a_model_have_the_bits_of_an_all_reduce(world: World) -> None:
    """Both add up in the order of the ranks, in float32, so not a bit may differ."""
    x = torch.randn(50, 4, 6, generator=torch.Generator().manual_seed(world.rank))

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 33), torch.nn.Tanh(), torch.nn.Linear(33, 2))

    for name, options in OPTIMIZERS:
        sharded, reduced = make(), make()
        trainer = POS_Trainer(sharded, name, options, world=world)
        optimizer = plain(name, options)(reduced.parameters())
        for rows in x:
            sharded(rows).square().mean().backward()
            trainer.step()
            optimizer.zero_grad()
            reduced(rows).square().mean().backward()
            for parameter in reduced.parameters():
                world.transport.allreduce(parameter.grad, postscale=1 / world.size)
            optimizer.step()
        assert_same(sharded.parameters(), reduced.parameters())


@ranks(1, 2, 4)
def test_a_model_learns_as_on_the_whole_batch_and_as_with_an_all_reduce(world: World) -> None:
    """With weights and data of few bits all products and sums are exact, in any order."""
    numbers = torch.arange(world.size * 2 * 6, dtype=torch.float64).reshape(world.size * 2, 6)
    whole = numbers * 3 % 5 - 2
    rows = whole[world.rank * 2 : world.rank * 2 + 2]
    sharded, reduced, alone = two_layers(), two_layers(), two_layers()
    if world.rank:  # what counts is what rank 0 has
        torch.nn.init.constant_(sharded[0].weight, 7)
    trainer = POS_Trainer(sharded, torch.optim.SGD, {"lr": 2.0**-9, "momentum": 0.5}, world=world)
    others = [
        torch.optim.SGD(model.parameters(), lr=2.0**-9, momentum=0.5) for model in (reduced, alone)
    ]
    for _ in range(2):
        sharded(rows).square().sum().backward()
        trainer.step(batch_size=2)
        for model, optimizer, batch in zip((reduced, alone), others, (rows, whole), strict=True):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            for parameter in model.parameters():
                if model is reduced:
                    world.transport.allreduce(parameter.grad)
                parameter.grad /= 2 * world.size
            optimizer.step()
    assert_same(sharded.parameters(), alone.parameters())
    assert_same(sharded.parameters(), reduced.parameters())


@ranks(2)
def test_parameters_may_be_given_in_many_ways(world: World) -> None:
    def pair() -> list[torch.nn.Parameter]:
        return make_parameters(((4,), (5,)))

    a, b = pair()
    assert POS_Trainer({"y": a, "x": b}, "sgd", world=world).names == ("x", "y")
    a, b = pair()
    assert POS_Trainer([("y", a), ("x", b)], "sgd", world=world, prefix="m.").names == (
        "m.y",
        "m.x",
    )
    assert POS_Trainer(tuple(pair()), "sgd", world=world).names == ("parameter.0", "parameter.1")
    model = torch.nn.Linear(2, 2)
    assert POS_Trainer(model, "sgd", world=world).names == ("weight", "bias")
    tied = torch.nn.ModuleDict({"in": torch.nn.Linear(2, 2, bias=False), "out": model})
    tied["in"].weight = model.weight
    trainer = POS_Trainer(dict(tied.named_parameters(remove_duplicate=False)), "sgd", world=world)
    assert trainer.names == ("in.weight", "out.bias")
    gluon = {"learning_rate": 0.25, "wd": 0.5, "beta1": 0.75, "epsilon": 1e-3}
    group = POS_Trainer(pair(), "adam", gluon, world=world).param_groups[0]
    found = {key: group[key] for key in ("lr", "weight_decay", "betas", "eps")}
    assert found == {"lr": 0.25, "weight_decay": 0.5, "betas": (0.75, 0.999), "eps": 1e-3}


@ranks(2, 3)
def test_groups_and_schedulers(world: World) -> None:
    shapes = ((3,), (2, 5), (33,))
    parameters, plain_ones = make_parameters(shapes), make_parameters(shapes)

    def groups(each: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": each[:1], "lr": 0.5}, {"params": each[1:], "weight_decay": 0.25}]

    trainer = POS_Trainer(groups(parameters), torch.optim.SGD, {"lr": 0.125}, world=world)
    optimizer = torch.optim.SGD(groups(plain_ones), lr=0.125)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (trainer.optimizer, optimizer)
    ]
    for step in range(3):
        train(trainer, parameters, [step], shapes=shapes)
        for parameter, gradient in zip(
            plain_ones, mean_of_step(step, world.size, shapes=shapes), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert_same(parameters, plain_ones)
    assert [group["lr"] for group in trainer.param_groups] == [0.0625, 0.015625]
    trainer.set_learning_rate(1.0)
    assert trainer.learning_rate == 1.0


@ranks(1, 2, 3)
def test_clip_by_the_norm_of_all_gradients(world: World) -> None:
    """The roots of 4^2 * 16 and 3^2 * 16 are exact: 20. Elsewhere a bound.

    A norm of n elements, each rounded once when squared and once per addition, is off by at most
    n eps relatively, and in pairwise sums by far less; 1e-5 is n eps for the 1042 elements here.
    """
    first, second = torch.nn.Parameter(torch.zeros(16)), torch.nn.Parameter(torch.zeros(16))
    trainer = POS_Trainer([first, second], "sgd", {"lr": 1.0}, world=world)
    backward([first, second], [torch.full((16,), 4.0), torch.full((16,), 3.0)])
    assert trainer.clip_grad_norm_(5.0).item() == 20.0
    trainer.step()
    factor = np.float32(5.0 / (20.0 + 1e-6))
    assert_same([first, second], [torch.full((16,), -4 * factor), torch.full((16,), -3 * factor)])
    shapes = ((1021,), (3, 7))
    for norm_type in (1.0, 2.0, 3.0, float("inf")):
        parameters, plain_ones = make_parameters(shapes), make_parameters(shapes)
        trainer = POS_Trainer(parameters, "sgd", {"lr": 1.0}, world=world)
        backward(parameters, pull_of(world.rank, 0, world.size, shapes))
        for parameter, gradient in zip(
            plain_ones, mean_of_step(0, world.size, shapes=shapes), strict=True
        ):
            parameter.grad = gradient
        expected = torch.nn.utils.clip_grad_norm_(plain_ones, 2.0, norm_type)
        found = trainer.clip_grad_norm_(2.0, norm_type)
        assert abs(found - expected) <= 1e-5 * expected
        trainer.update()
        for parameter, other in zip(parameters, plain_ones, strict=True):
            # One more rounding each: of the factor, of the product, of the difference.
            assert torch.allclose(parameter, other - other.grad, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_a_norm_with_what_is_not_a_number_is_none(world: World) -> None:
    """All gradients become NaN, as in torch, and none is stepped by what it was."""
    for norm_type in (2.0, float("inf")):
        parameters = make_parameters(((50,), (70,)))
        trainer = POS_Trainer(parameters, "sgd", {"lr": 1.0}, world=world)
        pull = [torch.full((50,), 2.0), torch.full((70,), 100.0)]
        pull[0][49 if world.rank else 0] = float("nan")
        backward(parameters, pull)
        with pytest.raises(RuntimeError, match="is nan"):
            trainer.clip_grad_norm_(1.0, norm_type, error_if_nonfinite=True)
        assert trainer.clip_grad_norm_(1.0, norm_type).isnan()
        trainer.update()
        assert all(parameter.isnan().all() for parameter in parameters)
    trainer = POS_Trainer(make_parameters(((50,),)), "sgd", {"lr": 1.0}, world=world)
    for group in trainer.members():
        for parameter in group:
            parameter.grad = torch.cat([torch.zeros(20), torch.ones(30)])
    assert trainer.clip_grad_norm_(1.0, 0.0) == 30


@ranks(2)
def test_channels_last_weights_are_stepped_where_they_lie(world: World) -> None:
    shape = (4, 3, 5, 5)
    values = torch.arange(300.0).reshape(shape)
    weight = torch.nn.Parameter(values.to(memory_format=torch.channels_last))
    other = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    trainer = POS_Trainer([weight, other], "adam", {"lr": 0.5}, world=world)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert other.stride() == (1, 3)
    backward([weight, other], [values, torch.ones(3, 2)])
    trainer.step()
    alone = torch.nn.Parameter(values.clone()), torch.nn.Parameter(other.detach().clone())
    with torch.no_grad():
        alone[1].copy_(torch.arange(6.0).reshape(2, 3).t())
    optimizer = torch.optim.Adam(alone, lr=0.5, fused=True)
    alone[0].grad, alone[1].grad = values.clone(), torch.ones(3, 2)
    optimizer.step()
    assert_same([weight, other], alone)


@ranks(2)
def test_parameters_may_be_added(world: World) -> None:
    shapes = ((3,), (40,), (270_000,))
    parameters = make_parameters(shapes)
    trainer = POS_Trainer(parameters[:1], "sgd", {"lr": 0.5, "momentum": 0.5}, world=world)
    train(trainer, parameters[:1], [0], shapes=shapes[:1])
    trainer.add_param_group({"params": parameters[1:], "lr": 0.25})
    train(trainer, parameters, [1, 2], shapes=shapes)
    assert trainer.names == ("parameter.0", "parameter.1", "parameter.2")
    means = [mean_of_step(step, 2, shapes=shapes) for step in range(3)]
    means[0][1:] = [None, None]

    def make(each: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": each[:1]}, {"params": each[1:], "lr": 0.25}]
        return torch.optim.SGD(groups, lr=0.5, momentum=0.5, fused=True)

    assert_same(parameters, one_process(make, means, shapes)[0])
