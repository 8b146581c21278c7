"""Without shared parameters, what is stepped is gathered beside the rest of the step."""

from __future__ import annotations

import threading

import torch
from gradient_kit import assert_same
from sharded_kit import OPTIMIZERS, make_parameters, mean_of_step, one_process, plain, train

from kadril.sharded import POS_Trainer
from kadril.sharded.optimizer.overlapped_step import NUM_PORTIONS, portions_of
from kadril.sharded.ownership.bucket import Bucket
from kadril.testing import ranks
from kadril.world import World

# Each fills a bucket of its own, so that there are as many portions as can be.
SHAPES = ((300_007,), (280_000,), (3, 5), (290_000,), (310_000,), (270_000,))
NUM_STEPS = 2


@ranks(2, 3, transports=("c10d", "mpi:openmpi"))
def test_a_step_in_portions_has_the_bits_of_one(world: World) -> None:
    for name, options in OPTIMIZERS:
        parameters = make_parameters(SHAPES)
        trainer = POS_Trainer(parameters, name.lower(), options, world=world)
        assert len(portions_of(trainer.shards.buckets)) == NUM_PORTIONS
        schedule = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer, factor=1.0)
        for step in range(NUM_STEPS):
            train(trainer, parameters, [step], shapes=SHAPES)
            schedule.step()
        means = [mean_of_step(step, world.size, shapes=SHAPES) for step in range(NUM_STEPS)]
        assert_same(parameters, one_process(plain(name, options), means, SHAPES)[0])


@ranks(2, transports=("c10d", "mpi:openmpi"))
def test_gathering_begins_before_the_step_ends(world: World) -> None:
    """A spy on both: a gather of an early portion does not wait for the last step."""
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, torch.optim.SGD, {"lr": 0.125}, world=world)
    has_gathered = threading.Event()
    threads, steps = [], []
    step, gather = trainer.optimizer.step, Bucket.gather

    def spy_on_step() -> None:
        if len(steps) == NUM_PORTIONS - 1:
            assert has_gathered.wait(60), "nothing was gathered before the last portion"
        steps.append(step())

    def spy_on_gather(bucket: Bucket) -> None:
        gather(bucket)
        threads.append(threading.current_thread().name)
        has_gathered.set()

    trainer.optimizer.step = spy_on_step  # type: ignore[assignment]
    Bucket.gather = spy_on_gather  # type: ignore[method-assign]
    try:
        train(trainer, parameters, [0], shapes=SHAPES)
    finally:
        Bucket.gather = gather  # type: ignore[method-assign]
    assert len(steps) == NUM_PORTIONS
    assert threads == ["kadril.sharded"] * len(trainer.shards.buckets)


@ranks(2, transports=("c10d", "mpi:openmpi"))
def test_a_hook_of_the_optimizer_is_called_once_a_step(world: World) -> None:
    parameters = make_parameters(SHAPES)
    trainer = POS_Trainer(parameters, torch.optim.SGD, {"lr": 0.125}, world=world)
    calls = []
    trainer.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(trainer, parameters, range(2), shapes=SHAPES)
    assert len(calls) == 2
    means = [mean_of_step(step, world.size, shapes=SHAPES) for step in range(2)]
    assert_same(parameters, one_process(plain("SGD", {"lr": 0.125}), means, SHAPES)[0])
