"""Random programs: whatever ranks do between two steps, they end as one process does."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from gradient_kit import Pull, assert_same, backward, combined
from training_kit import (
    SHAPES,
    assert_gradients,
    both_ways,
    make_parameters,
    momentum_sgd,
    one_process,
    pull_of,
)

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World

# In 132 two ranks looked at the groups, and each waited for what the other had not submitted yet.
SEEDS = (132, 0, 1, 2, 3, 4)


def passes_of(rank: int, step: int, seed: int) -> list[Pull]:
    """Backward passes of a rank in one step, each with some of the gradients."""
    dice = random.Random(f"{seed} {step} {rank}")
    everyone = random.Random(f"{seed} {step}")
    nowhere = {place for place in range(len(SHAPES)) if everyone.random() < 0.2}
    missing = [0.0, 0.3, 1.0][everyone.choice([0, 1, 1, 2])] if rank else dice.choice([0.0, 0.3])
    return [
        [
            None if place in nowhere or dice.random() < missing else each
            for place, each in enumerate(pull_of(rank, 10 * step + number))
        ]
        for number in range(dice.randint(1, 2))
    ]


def run(world: World, seed: int) -> None:
    dice = random.Random(seed)  # the same on all ranks
    groups = dice.choice([None, None, 1, 3])
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(
        momentum_sgd(parameters), op=hvd.Sum, backward_passes_per_step=2, groups=groups
    )
    sums = []
    for step in range(5):
        optimizer.zero_grad()
        if dice.random() < 0.2:  # a step that is thought better of
            backward(parameters, pull_of(world.rank, 77))
            optimizer.zero_grad()
        for pull in passes_of(world.rank, step, seed):
            backward(parameters, pull)
        everything = [p for rank in range(world.size) for p in passes_of(rank, step, seed)]
        sums.append(combined(everything))
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if dice.random() < 0.3:
            optimizer.synchronize()
            assert_gradients(parameters, sums[-1])
            if step % 2:
                context = optimizer.skip_synchronize()
            else:
                context = pytest.warns(UserWarning, match="skip_synchronize")
        if random.Random(f"{seed} {step} {world.rank}").random() < 0.3:  # on some ranks only
            assert len(optimizer.param_groups) == 1
        with context:
            optimizer.step()
        assert_gradients(parameters, sums[-1])
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2, 3)
@both_ways
def test_random_programs(world: World) -> None:
    hvd.init()
    for seed in SEEDS:
        print(f"seed {seed}")  # noqa: T201 - shown where it fails
        run(world, seed)
