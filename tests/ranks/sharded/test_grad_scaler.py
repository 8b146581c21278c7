"""Scaled losses: a gradient that is not finite on one rank is one on all, and no rank steps."""

from __future__ import annotations

import pytest
import torch
from gradient_kit import Pull, assert_same
from sharded_kit import OPTIMIZERS, make_parameters, mean_of_step, one_process, plain, pull_of

from kadril.errors import StateError
from kadril.sharded import GradScaler, POS_Trainer, ShardedOptimizer
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[2]
SHAPES = ((3,), (2, 5), (1021,))
SCALE = 1024.0


def make_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=SCALE, growth_interval=1000)


def backward(scaler: GradScaler, parameters: list[torch.nn.Parameter], pull: Pull) -> None:
    loss = sum((p * c).sum() for p, c in zip(parameters, pull, strict=True))
    scaler.scale(loss).backward()


@ranks(1, 2, 3, transports=("shm", "c10d"))
def test_no_rank_steps_where_one_has_an_infinity(world: World) -> None:
    """Only the last rank has one; with a power of two as scale everything else is exact."""
    for stage in (1, 2):
        for front in (POS_Trainer, ShardedOptimizer):
            parameters, scaler = make_parameters(SHAPES), make_scaler()
            given = {"stage": stage, "world": world}
            trainer = (
                POS_Trainer(parameters, NAME, OPTIONS, **given)
                if front is POS_Trainer
                else ShardedOptimizer(
                    parameters,
                    torch.optim.Adam,
                    reduce_gradients=True,
                    fused=True,
                    **OPTIONS,
                    **given,
                )
            )
            for step in range(3):
                before = [each.detach().clone() for each in parameters]
                pull = pull_of(world.rank, step, world.size, SHAPES)
                if step == 1 and world.rank == world.size - 1:
                    pull[2][5] = float("inf")
                trainer.zero_grad()
                backward(scaler, parameters, pull)
                if step == 2:
                    scaler.unscale_(trainer)
                    # Of all gradients, unscaled.
                    norm = trainer.clip_grad_norm_(1e9)
                    assert norm < 1e6
                scaler.step(trainer)
                with pytest.raises(RuntimeError, match="already been called"):
                    scaler.step(trainer)
                scaler.update()
                assert scaler.get_scale() == (SCALE if step == 0 else SCALE / 2)
                if step == 1:
                    assert_same(parameters, before)
            means = [mean_of_step(step, world.size, shapes=SHAPES) for step in (0, 2)]
            assert_same(parameters, one_process(plain(NAME, OPTIONS), means, SHAPES)[0])


@ranks(2)
def test_a_step_that_is_left_out_leaves_nothing_for_the_next(world: World) -> None:
    """With stage 2 nobody has to call `zero_grad()`."""
    parameters, scaler = make_parameters(SHAPES), make_scaler()
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(2):
        pull = pull_of(world.rank, step, 2, SHAPES)
        if step == 0 and world.rank == 1:
            pull[0][0] = float("nan")
        backward(scaler, parameters, pull)
        scaler.step(trainer)
        scaler.update()
    means = [mean_of_step(1, 2, shapes=SHAPES)]
    assert_same(parameters, one_process(plain(NAME, OPTIONS), means, SHAPES)[0])


@ranks(2)
def test_gradients_that_somebody_else_reduced(world: World) -> None:
    """Behind DistributedDataParallel torch's own scaler serves as well; ours asks all ranks."""
    for make in (make_scaler, lambda: torch.amp.GradScaler("cpu", init_scale=SCALE)):
        parameters, scaler = make_parameters(SHAPES), make()
        optimizer = ShardedOptimizer(
            parameters, torch.optim.Adam, world=world, fused=True, **OPTIONS
        )
        means = [mean_of_step(step, 2, shapes=SHAPES) for step in range(3)]
        for step, mean in enumerate(means):
            for parameter, gradient in zip(parameters, mean, strict=True):
                parameter.grad = gradient * scaler.scale(torch.ones(()))
            # Torch's can be told only where all ranks have it.
            if step == 1 and (world.rank == 1 or type(scaler) is torch.amp.GradScaler):
                parameters[1].grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == SCALE / 2
        expected, _ = one_process(plain(NAME, OPTIONS), [means[0], means[2]], SHAPES)
        assert_same(parameters, expected)


@pytest.mark.filterwarnings("ignore:.grad was looked at")
@ranks(2)
def test_torchs_own_scaler_is_refused_where_ranks_would_part(world: World) -> None:
    for stage in (1, 2):
        for reduces in (False, True):
            parameters = make_parameters(SHAPES)
            trainer = (
                ShardedOptimizer(
                    parameters, torch.optim.SGD, reduce_gradients=True, stage=stage, world=world
                )
                if reduces
                else POS_Trainer(parameters, "sgd", stage=stage, world=world)
            )
            scaler = torch.amp.GradScaler("cpu")
            pull = pull_of(world.rank, 0, 2, SHAPES)
            if world.rank == 1:
                pull[0][0] = float("inf")
            backward(scaler, parameters, pull)
            with pytest.raises(StateError, match=r"Use kadril\.sharded\.GradScaler"):
                scaler.step(trainer)
            assert_same(parameters, make_parameters(SHAPES))
            trainer.zero_grad()


@ranks(2)
def test_other_optimizers_and_a_scaler_that_is_off(world: World) -> None:
    scaler = make_scaler()
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter.detach(), torch.full((3,), 0.5))
    parameters, off = make_parameters(SHAPES), GradScaler("cpu", enabled=False)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    backward(off, parameters, pull_of(world.rank, 0, 2, SHAPES))
    off.unscale_(trainer)
    off.step(trainer)
    off.update()
    means = [mean_of_step(0, 2, shapes=SHAPES)]
    assert_same(parameters, one_process(plain(NAME, OPTIONS), means, SHAPES)[0])
    with pytest.raises(RuntimeError, match="closures"):
        scaler.step(trainer, closure=lambda: 0.0)
