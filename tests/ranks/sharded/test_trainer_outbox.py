"""Gradients through outboxes: no rank waits for another in its backward pass, and nothing is lost.

The parameters here are several times as large as the outboxes, so that slots are used again.
"""

from __future__ import annotations

import random
import time

import torch
from gradient_kit import Pull, assert_same, backward
from sharded_kit import (
    OPTIMIZERS,
    add_up,
    make_parameters,
    mean,
    mean_of_step,
    one_process,
    plain,
    pull_of,
)

from kadril.sharded import POS_Trainer
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[2]
SHAPES = ((300_007,), (3, 5), (64_000,), (70_000,), (11,))


def expect(means: list[Pull]) -> list[torch.nn.Parameter]:
    return one_process(plain(NAME, OPTIONS), means, SHAPES)[0]


def take_turns(world: World, *works: object) -> None:
    """One rank after the other: the next begins when the one before is through."""
    for rank in range(world.size):
        if rank == world.rank:
            for work in works:
                work()  # type: ignore[operator]
        world.transport.barrier()


@ranks(2, 3)
def test_a_rank_may_be_through_before_another_begins(world: World) -> None:
    """Here a rank that waited for the others in its backward pass would wait forever."""
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(3):
        pull = pull_of(world.rank, step, world.size, SHAPES)
        take_turns(world, lambda pull=pull: backward(parameters, pull))
        assert all(raw_grad(parameter) is None for parameter in parameters)
        trainer.step()
    assert_same(
        parameters, expect([mean_of_step(step, world.size, shapes=SHAPES) for step in range(3)])
    )


@ranks(2, 3)
def test_gradients_that_were_dropped_on_their_way_are_gone(world: World) -> None:
    """The first rank drops what it has posted before the last one has seen any of it."""
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(3):
        dropped = pull_of(world.rank, 10 + step, world.size, SHAPES)
        if step == 1:  # not all of a pass, so that it is dropped in the middle
            dropped[2 + world.rank % 2] = None
        take_turns(world, lambda dropped=dropped: backward(parameters, dropped), trainer.zero_grad)
        backward(parameters, pull_of(world.rank, step, world.size, SHAPES))
        trainer.step()
    assert_same(
        parameters, expect([mean_of_step(step, world.size, shapes=SHAPES) for step in range(3)])
    )


@ranks(2, 3)
def test_any_pace_and_any_number_of_passes_add_up(world: World) -> None:
    """Sleeps change who is ahead; they are not waited for."""
    same = random.Random(7)
    own = random.Random(world.rank)
    parameters = make_parameters(SHAPES)
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda _: time.sleep(own.random() * 2e-3))
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    means = []
    for step in range(8):
        passes = [
            [
                [
                    each if same.random() < 0.9 else None
                    for each in pull_of(rank, 10 * step + number, world.size, SHAPES)
                ]
                for number in range(same.choice((0, 1, 1, 1, 3)))
            ]
            for rank in range(world.size)
        ]
        for pull in passes[world.rank]:
            backward(parameters, pull)
        if same.random() < 0.3:
            trainer.allreduce_grads()
        trainer.step()
        means.append(mean([add_up(of_rank, SHAPES) for of_rank in passes]))
    assert_same(parameters, expect(means))
