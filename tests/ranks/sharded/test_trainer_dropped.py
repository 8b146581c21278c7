"""zero_grad() in the middle of a round: what was dropped on one rank is in no sum of another."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from gradient_kit import Pull, assert_same, backward
from sharded_kit import OPTIMIZERS, add_up, make_parameters, mean, one_process, plain, pull_of

from kadril.errors import MismatchError
from kadril.sharded import POS_Trainer
from kadril.sharded.ownership.gradient_memory import raw_grad
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[2]
SHAPES = ((300_007,), (3, 5), (64_000,), (11,))
EVERYWHERE = ("shm", "c10d", "mpi:openmpi")


def expect(means: list[Pull]) -> list[torch.nn.Parameter]:
    return one_process(plain(NAME, OPTIONS), means, SHAPES)[0]


def make(world: World, stage: int = 2) -> tuple[list[torch.nn.Parameter], POS_Trainer]:
    parameters = make_parameters(SHAPES)
    return parameters, POS_Trainer(parameters, NAME, OPTIONS, world=world, stage=stage)


def draw_passes(dice: random.Random, world: World, step: int, most: int) -> list[list[Pull]]:
    """Return the gradients of each rank in its passes, 0 to `most`; the same on all ranks."""
    return [
        [
            [
                each if dice.random() < 0.9 else None
                for each in pull_of(rank, 100 * step + number, world.size, SHAPES)
            ]
            for number in range(dice.randrange(most + 1))
        ]
        for rank in range(world.size)
    ]


@ranks(2, 3, transports=EVERYWHERE)
def test_any_number_of_passes_may_be_dropped(world: World) -> None:
    """One rank drops two passes and another one: its second met the first one that counts."""
    dice = random.Random(5)
    for stage in (1, 2):
        parameters, trainer = make(world, stage)
        means = []
        for step in range(6):
            trainer.zero_grad()  # stage 1 keeps gradients after a step
            for attempt in range(dice.randrange(3)):
                dropped = draw_passes(dice, world, 50 + 10 * step + attempt, 2)
                for passes in dropped:
                    # Ranks that have made none have not noticed that there is something to drop.
                    passes.append(pull_of(0, 99, world.size, SHAPES))
                for pull in dropped[world.rank]:
                    backward(parameters, pull)
                if dice.random() < 0.3:
                    trainer.allreduce_grads()
                trainer.zero_grad()
            passes = draw_passes(dice, world, step, 3)
            for pull in passes[world.rank]:
                backward(parameters, pull)
            if dice.random() < 0.3:
                trainer.allreduce_grads()
            trainer.step()
            means.append(mean([add_up(of_rank, SHAPES) for of_rank in passes]))
        assert_same(parameters, expect(means))


@ranks(2, transports=EVERYWHERE)
def test_a_rank_without_a_pass_need_not_drop_anything(world: World) -> None:
    """Rank 0 has a batch that is no good, rank 1 has none: neither gives anything."""
    parameters, trainer = make(world)
    if world.rank == 0:
        backward(parameters, pull_of(0, 7, world.size, SHAPES))
        trainer.zero_grad()
        backward(parameters, pull_of(0, 0, world.size, SHAPES))
    trainer.step()
    nothing = [torch.zeros(shape) for shape in SHAPES]
    assert_same(parameters, expect([mean([pull_of(0, 0, world.size, SHAPES), nothing])]))


@ranks(2, transports=EVERYWHERE)
@pytest.mark.parametrize("drops_again", [False, True])
def test_a_rank_that_drops_alone_is_named(world: World, drops_again: bool) -> None:
    """Gradients of the other lie in one sum with those dropped here. All can continue after it."""
    parameters, trainer = make(world)
    before = [each.detach().clone() for each in parameters]
    backward(parameters, pull_of(world.rank, 7, world.size, SHAPES))
    if world.rank == 1:
        trainer.zero_grad()
        backward(parameters, pull_of(world.rank, 8, world.size, SHAPES))
        if drops_again:
            trainer.zero_grad()
    with pytest.raises(
        MismatchError, match=r"rank 1 has dropped .* rank 0 has not.*every rank.*now"
    ):
        trainer.step()
    assert_same(parameters, before)
    world.transport.barrier()
    pulls = [pull_of(rank, 0, world.size, SHAPES) for rank in range(world.size)]
    backward(parameters, pulls[world.rank])
    trainer.step()
    assert_same(parameters, expect([mean(pulls)]))


@ranks(2)
def test_a_rank_that_drops_reduced_gradients_alone_is_named(world: World) -> None:
    for stage in (1, 2):
        parameters, trainer = make(world, stage)
        backward(parameters, pull_of(world.rank, 7, world.size, SHAPES))
        trainer.allreduce_grads()
        if world.rank == 1:
            trainer.zero_grad()
        backward(parameters, pull_of(world.rank, 8, world.size, SHAPES))
        with pytest.raises(MismatchError, match=r"rank 0 has dropped .* 0 times .* rank 1 1 times"):
            trainer.step()


@ranks(2)
def test_memory_is_given_back_again_after_a_drop(world: World) -> None:
    """Gradients wait in `.grad` until the next settling, and not after it."""
    parameters, trainer = make(world)

    def gone() -> bool:
        return all(raw_grad(parameter) is None for parameter in parameters)

    settle: list[Callable[[], None]] = [trainer.step, trainer.allreduce_grads]
    for act in settle:
        backward(parameters, pull_of(world.rank, 0, world.size, SHAPES))
        trainer.zero_grad()
        backward(parameters, pull_of(world.rank, 1, world.size, SHAPES))
        assert not gone()
        act()
        assert gone()
        backward(parameters, pull_of(world.rank, 2, world.size, SHAPES))
        assert gone()
        trainer.step()


@ranks(2, transports=("shm", "c10d"))
def test_a_pass_of_which_nothing_was_given_may_be_dropped(world: World) -> None:
    """No bucket of rank 1 was whole; rank 0 has given all of its own.

    What rank 0 alone had in `.grad` before the trainer was made is nobody's to drop.
    """
    parameters = make_parameters(SHAPES)
    if world.rank == 0:
        backward(parameters, pull_of(0, 5, world.size, SHAPES))
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    pulls = [pull_of(rank, 0, world.size, SHAPES) for rank in range(world.size)]
    for step in range(2):
        trainer.zero_grad()
        if step:
            pull = pull_of(world.rank, 7, world.size, SHAPES)
            backward(parameters, [None, pull[1], None, None] if world.rank else pull)
            trainer.zero_grad()
        backward(parameters, pulls[world.rank])
        trainer.step()
    assert_same(parameters, expect([mean(pulls)] * 2))


@ranks(2, transports=EVERYWHERE)
def test_nobody_waits_for_others_to_drop(world: World) -> None:
    """Rank 1 has made one more pass than rank 0, which is in the step of another trainer."""
    parameters, trainer = make(world)
    others = make_parameters(((50,),))
    other = POS_Trainer(others, NAME, OPTIONS, world=world)
    for number in range(1 + world.rank):
        backward(parameters, pull_of(world.rank, number, world.size, SHAPES))
    trainer.zero_grad()
    backward(others, [torch.ones(50)])
    other.step()
    pulls = [pull_of(rank, 0, world.size, SHAPES) for rank in range(world.size)]
    backward(parameters, pulls[world.rank])
    trainer.step()
    assert_same(parameters, expect([mean(pulls)]))


@ranks(2, 3)
def test_a_step_that_was_refused_loses_nothing(world: World) -> None:
    """Ranks are told of another learning rate when some blocks are taken and others not posted."""
    parameters, trainer = make(world)
    passes = [
        [pull_of(rank, number, world.size, SHAPES) for number in range(1 + 2 * (rank == 1))]
        for rank in range(world.size)
    ]
    for pull in passes[world.rank]:
        backward(parameters, pull)
    if world.rank == 0:
        trainer.set_learning_rate(0.5)
    with pytest.raises(MismatchError, match="other options"):
        trainer.step()
    trainer.set_learning_rate(OPTIONS["lr"])
    last = [pull_of(rank, 9, world.size, SHAPES) for rank in range(world.size)]
    backward(parameters, last[world.rank])
    trainer.step()
    sums = [add_up([*of_rank, last[rank]], SHAPES) for rank, of_rank in enumerate(passes)]
    assert_same(parameters, expect([mean(sums)]))


@ranks(2, transports=EVERYWHERE)
def test_passes_after_a_reduction_count_and_can_be_skipped(world: World) -> None:
    """A pass, a reduction, a pass: the step has both. Also where the first had nothing in it."""
    none: Pull = [None] * len(SHAPES)
    for stage in (1, 2):
        for first in (True, False):
            parameters, trainer = make(world, stage)
            pulls = [
                [pull_of(rank, n, world.size, SHAPES) if n or first else none for n in range(2)]
                for rank in range(world.size)
            ]
            for is_skipped in (True, False):
                trainer.zero_grad()
                if first:
                    backward(parameters, pulls[world.rank][0])
                trainer.allreduce_grads()
                backward(parameters, pulls[world.rank][1])
                if is_skipped:
                    trainer.skip_step()
            trainer.step()
            assert_same(parameters, expect([mean([add_up(each, SHAPES) for each in pulls])]))
