"""A round: backward passes, accumulation, clearing, synchronizing, skipping."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradient_kit import assert_same, backward, combined
from training_kit import (
    SHAPES,
    all_ranks,
    assert_gradients,
    both_ways,
    make_parameters,
    momentum_sgd,
    one_process,
    pull_of,
)

import kadril.torch as hvd
from kadril.errors import StateError
from kadril.testing import ranks
from kadril.world import World


def make(**options: object) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    parameters = make_parameters()
    options.setdefault("op", hvd.Sum)
    return parameters, hvd.DistributedOptimizer(momentum_sgd(parameters), **options)


@ranks(1, 2, 3)
@both_ways
def test_passes_are_added_up_and_not_divided(world: World) -> None:
    hvd.init()
    parameters, optimizer = make(backward_passes_per_step=3)
    for step in (0, 3):
        optimizer.zero_grad()
        for number in range(3):
            backward(parameters, pull_of(world.rank, step + number))
        optimizer.step()
    sums = [
        combined(all_ranks(step) + all_ranks(step + 1) + all_ranks(step + 2)) for step in (0, 3)
    ]
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2)
@both_ways
def test_fewer_passes_are_reduced_at_the_step(world: World) -> None:
    hvd.init()
    parameters, optimizer = make(backward_passes_per_step=4)
    backward(parameters, pull_of(world.rank, 0))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks(0)))
    optimizer.zero_grad()
    for number in range(4):  # the next round counts from the start
        backward(parameters, pull_of(world.rank, number))
    optimizer.step()
    assert_gradients(parameters, combined([p for step in range(4) for p in all_ranks(step)]))


@ranks(2)
@both_ways
def test_a_pass_too_many_is_refused_and_explained(world: World) -> None:
    """Gradients that were submitted are in flight: what is added would be lost, all or half."""
    hvd.init()
    parameters, optimizer = make(backward_passes_per_step=2)
    backward(parameters, pull_of(world.rank, 0))
    backward(parameters, pull_of(world.rank, 1))
    with pytest.raises(StateError, match=r"gradient number 3 .* give backward_passes_per_step=3"):
        backward(parameters, pull_of(world.rank, 2))
    optimizer.zero_grad()
    backward(parameters, pull_of(world.rank, 3))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks(3)))


@ranks(2)
@both_ways
def test_the_number_of_passes_can_be_changed(world: World) -> None:
    hvd.init()
    parameters, optimizer = make()
    backward(parameters, pull_of(world.rank, 0))
    optimizer.step()
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    backward(parameters, pull_of(world.rank, 1))
    backward(parameters, pull_of(world.rank, 2))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks(1) + all_ranks(2)))
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)


@ranks(2)
@both_ways
def test_zero_grad_gives_what_torch_gives(world: World) -> None:
    """`set_to_none` was a TypeError once; its two values mean different things to optimizers."""
    hvd.init()
    parameters, optimizer = make()
    for set_to_none in (True, False, None):
        backward(parameters, pull_of(world.rank, 0))
        optimizer.step()
        if set_to_none is None:
            optimizer.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=set_to_none)
        for parameter in parameters:
            if set_to_none is False:
                assert parameter.grad is not None
                assert not parameter.grad.any()
            else:
                assert parameter.grad is None


@ranks(2)
@both_ways
def test_zero_grad_drops_gradients_that_are_on_their_way(world: World) -> None:
    """A step that is skipped, as after an overflow, or the critic's gradients in a GAN."""
    hvd.init()
    for set_to_none in (True, False):
        parameters, optimizer = make()
        for _ in range(3):
            backward(parameters, pull_of(world.rank, 0))
            optimizer.zero_grad(set_to_none=set_to_none)
        backward(parameters, pull_of(world.rank, 1))
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(1)))
        assert_same(parameters, one_process(momentum_sgd, [combined(all_ranks(1))]))


@ranks(2)
@both_ways
def test_gradients_that_are_not_cleared_are_added_to(world: World) -> None:
    """The reduced gradient stays, as in torch, and the next one is added to it."""
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Average)
    for step in range(2):
        backward(parameters, pull_of(world.rank, step))
        optimizer.step()
    assert_gradients(parameters, combined(all_ranks(0) + all_ranks(1), world.size))


@ranks(1, 2, 3)
@both_ways
def test_gradients_are_clipped_after_they_are_reduced(world: World) -> None:
    hvd.init()
    parameters, optimizer = make()
    backward(parameters, pull_of(world.rank, 0))
    optimizer.synchronize()
    assert_gradients(parameters, combined(all_ranks(0)))
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.clamp_(-1, 1)
    with optimizer.skip_synchronize():
        optimizer.step()
    clipped = [None if g is None else g.clamp(-1, 1) for g in combined(all_ranks(0))]
    assert_same(parameters, one_process(momentum_sgd, [clipped]))


@ranks(2)
@both_ways
def test_synchronize_then_step_reduces_once(world: World) -> None:
    """A second reduction would double every sum; with clipped gradients it would go unnoticed.

    As with Horovod there is one warning of it, that names what to write; there was none.
    """
    hvd.init()
    parameters, optimizer = make()
    for step in range(2):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        optimizer.synchronize()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        (warning,) = caught
        text = "optimizer.step() called without optimizer.skip_synchronize()"
        assert text in str(warning.message)
        assert warning.filename == __file__
    sums = [combined(all_ranks(step)) for step in range(2)]
    assert_same(parameters, one_process(momentum_sgd, sums))


@ranks(2)
@both_ways
def test_skipping_ends_with_its_block(world: World) -> None:
    hvd.init()
    parameters, optimizer = make()
    with pytest.raises(KeyError), optimizer.skip_synchronize():
        raise KeyError
    backward(parameters, pull_of(world.rank, 0))
    optimizer.step()
    assert_gradients(parameters, combined(all_ranks(0)))


@ranks(2)
@both_ways
def test_looking_at_the_groups_waits_for_gradients(world: World) -> None:
    """Code that walks over `param_groups` before the step wants the reduced gradients."""
    hvd.init()
    parameters, optimizer = make()
    for step in range(2):  # in the first round large gradients wait for the census
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        seen = [p.grad.clone() for group in optimizer.param_groups for p in group["params"]]
        assert_same(seen, [g for g in combined(all_ranks(step)) if g is not None])
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step)))


@ranks(2)
@both_ways
def test_one_rank_may_look_between_two_losses(world: World) -> None:
    """Rank 0 logs the learning rate between the backward passes of two losses; rank 1 does not."""
    hvd.init()
    parameters, optimizer = make()
    half = len(SHAPES) // 2
    for step in range(3):
        optimizer.zero_grad()
        pull = pull_of(world.rank, step)
        backward(parameters, pull[:half] + [None] * (len(SHAPES) - half))
        if world.rank == 0:
            assert optimizer.param_groups[0]["lr"] == 0.125
        backward(parameters, [None] * half + pull[half:])
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step)))


@ranks(2, 3)
@both_ways
def test_a_rank_that_has_joined_takes_part_with_zeros(world: World) -> None:
    """Ranks with fewer batches join; the others go on, also with what no rank had agreed on."""
    hvd.init()
    parameters, optimizer = make()
    num_steps = 4 if world.rank == 0 else 2
    for step in range(num_steps):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step)[: None if step < 2 else 1]))
    assert hvd.join() == 0  # the last one


@ranks(2)
@both_ways
def test_a_second_derivative_does_not_disturb(world: World) -> None:
    """With create_graph autograd replaces `.grad` instead of adding to it."""
    hvd.init()
    parameters, optimizer = make(backward_passes_per_step=2)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns, once, that this makes a cycle
            sum((p * p).sum() for p in parameters).backward(create_graph=True)
        backward(parameters, pull_of(world.rank, 0))
        expected = [
            2 * world.size * p.detach() + g
            for p, g in zip(parameters, combined(all_ranks(0)), strict=True)
            if g is not None
        ]
        optimizer.step()
        assert_gradients(parameters, expected)
