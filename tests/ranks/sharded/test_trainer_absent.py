"""Ranks that disagree on which gradients there are, and how often: nothing hangs, all adds up."""

from __future__ import annotations

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

NAME, OPTIONS = OPTIMIZERS[1]  # weight decay shows a step that should not be


def some_of(rank: int, step: int, size: int) -> Pull:
    """Each rank leaves out other parameters in each step; 1 and 4 are nowhere in step 1."""
    return [
        None if (place + rank + step) % 3 == 0 or (place in (1, 4) and step == 1) else each
        for place, each in enumerate(pull_of(rank, step, size))
    ]


@ranks(1, 2, 3)
def test_ranks_may_skip_different_layers(world: World) -> None:
    """Ranks without a gradient take part with zeros; parameters without any are not stepped."""
    size = world.size
    for stage in (1, 2):
        parameters = make_parameters()
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world, stage=stage)
        for step in range(4):
            trainer.zero_grad()
            backward(parameters, some_of(world.rank, step, size))
            trainer.step()
        means = [mean([some_of(rank, step, size) for rank in range(size)]) for step in range(4)]
        assert_same(parameters, one_process(plain(NAME, OPTIONS), means)[0])


@ranks(2, transports=("c10d",))
def test_ranks_may_skip_different_layers_elsewhere(world: World) -> None:
    test_ranks_may_skip_different_layers(world)


@ranks(3)
def test_ranks_may_make_different_numbers_of_passes(world: World) -> None:
    """Rank r makes r passes in this step and 2 - r in the next; all of them count."""
    for stage in (1, 2):
        parameters = make_parameters()
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world, stage=stage)

        def passes_of(rank: int, step: int) -> list[Pull]:
            num_passes = rank if step == 0 else 2 - rank
            return [pull_of(rank, 10 * step + number, 3) for number in range(num_passes)]

        means = []
        for step in range(2):
            trainer.zero_grad()
            for pull in passes_of(world.rank, step):
                backward(parameters, pull)
            trainer.step()
            sums = [add_up(passes_of(rank, step)) for rank in range(3)]
            means.append(mean(sums))
        assert_same(parameters, one_process(plain(NAME, OPTIONS), means)[0])


@ranks(2, transports=("shm", "c10d"))
def test_a_bucket_may_get_more_after_its_turn(world: World) -> None:
    """The second pass of rank 0 misses the large one and some of the small ones.

    Their bucket has had its turn in the first pass, and the large one's has not: a step that only
    went through the rest of the buckets would leave gradients for the next.
    """

    def passes_of(rank: int, step: int) -> list[Pull]:
        missing: list[set[int]] = [{4}, {0, 4}] if rank == 0 and step == 1 else [set()]
        return [
            [
                None if place in hidden else each
                for place, each in enumerate(pull_of(rank, 10 * step + number, 2))
            ]
            for number, hidden in enumerate(missing)
        ]

    parameters = make_parameters()
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(3):
        for pull in passes_of(world.rank, step):
            backward(parameters, pull)
        trainer.step()
    means = [mean([add_up(passes_of(rank, step)) for rank in range(2)]) for step in range(3)]
    assert_same(parameters, one_process(plain(NAME, OPTIONS), means)[0])


@ranks(2)
def test_gradients_add_up_around_a_reduction(world: World) -> None:
    """allreduce_grads() in the middle reduces what there is; what comes later is added."""
    for stage in (1, 2):
        parameters = make_parameters()
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world, stage=stage)
        backward(parameters, pull_of(world.rank, 0, 2))
        trainer.allreduce_grads()
        backward(parameters, pull_of(world.rank, 1, 2))
        trainer.allreduce_grads()
        trainer.update(batch_size=4)
        total = add_up([mean_of_step(0, 2), mean_of_step(1, 2)])
        expected = [None if each is None else each / 4 for each in total]
        assert_same(parameters, one_process(plain(NAME, OPTIONS), [expected])[0])


@ranks(2)
def test_frozen_parameters_are_left_alone_until_they_thaw(world: World) -> None:
    """Torch's fused SGD fails where momentum begins later for some; ours must not.

    All numbers are powers of two and few bits, so another kernel has the same bits.
    """
    kind = {"dtype": torch.float64}
    parameters = make_parameters(**kind)
    frozen = {0, 4}
    for place in frozen:
        parameters[place].requires_grad_(False)
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    means = []
    for step in range(5):
        if step == 2:
            for place in frozen:
                parameters[place].requires_grad_(True)
        hidden = frozen if step < 2 else set()
        backward(
            parameters,
            [
                None if place in hidden else each
                for place, each in enumerate(pull_of(world.rank, step, 2, **kind))
            ],
        )
        if step == 4:  # one step after they thawed has seen them, the next one their order
            assert all(raw_grad(parameter) is None for parameter in parameters)
        trainer.step()
        means.append(
            [
                None if place in hidden else each
                for place, each in enumerate(mean_of_step(step, 2, **kind))
            ]
        )
    unfused = plain(NAME, {**OPTIONS, "fused": False})
    assert_same(parameters, one_process(unfused, means, **kind)[0])


@ranks(2)
def test_tied_weights_are_one_parameter(world: World) -> None:
    table = torch.nn.Parameter(torch.arange(60.0).reshape(20, 3))
    alone = torch.nn.Parameter(table.detach().clone())
    trainer = POS_Trainer({"in": table, "out": table}, "sgd", {"lr": 0.5}, world=world)
    assert trainer.names == ("in",)
    for weight in (table, alone):
        rows = torch.nn.functional.embedding(torch.tensor([1, 4]), weight)
        (rows @ weight.t()).sum().backward()
    trainer.step()
    torch.optim.SGD([alone], lr=0.5).step()
    assert torch.equal(table, alone)


@ranks(2)
def test_gradients_that_were_put_there_by_hand_count(world: World) -> None:
    parameters = make_parameters()
    trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world)
    for step in range(2):
        for parameter, gradient in zip(parameters, pull_of(world.rank, step, 2), strict=True):
            parameter.grad = gradient
        trainer.step()
    means = [mean_of_step(step, 2) for step in range(2)]
    assert_same(parameters, one_process(plain(NAME, OPTIONS), means)[0])


@ranks(2)
def test_dropped_gradients_are_gone(world: World) -> None:
    for stage in (1, 2):
        parameters = make_parameters()
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=world, stage=stage)
        backward(parameters, pull_of(world.rank, 7, 2))
        trainer.zero_grad()
        trainer.step()  # nothing to do
        assert_same(parameters, make_parameters())
        backward(parameters, pull_of(world.rank, 0, 2))
        trainer.step()
        expected, _ = one_process(plain(NAME, OPTIONS), [mean_of_step(0, 2)])
        assert_same(parameters, expected)


@ranks(2)
def test_gradients_are_given_back_as_they_come(world: World) -> None:
    """With stage 2 no rank ever has the gradients of two large layers at the same time.

    The hook that looks runs before the trainer's own, so the gradient at hand is there.
    """
    layers = [torch.nn.Linear(600, 600, bias=False) for _ in range(4)]
    held: list[int] = []

    def look(_: torch.Tensor) -> None:
        held.append(sum(raw_grad(layer.weight) is not None for layer in layers))

    for layer in layers:
        layer.weight.register_post_accumulate_grad_hook(look)
    model = torch.nn.Sequential(*layers)
    trainer = POS_Trainer(model, "sgd", {"lr": 0.5}, world=world)
    model(torch.ones(2, 600)).sum().backward()
    assert held == [1, 1, 1, 1]
    assert all(raw_grad(layer.weight) is None for layer in layers)
    trainer.step()
