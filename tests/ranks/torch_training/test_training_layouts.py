"""Gradients that are not like their parameter: other layouts, other dtypes, other owners."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from gradient_kit import backward, combined, pattern
from training_kit import (
    all_ranks,
    assert_gradients,
    both_ways,
    make_parameters,
    momentum_sgd,
    pull_of,
)

import kadril.torch as hvd
from kadril.errors import MismatchError, StateError
from kadril.testing import ranks
from kadril.world import World


@ranks(2)
@both_ways
def test_channels_last_gradients(world: World) -> None:
    """Small ones go through a bucket, large ones travel as they lie in memory."""
    hvd.init()
    for shape in ((2, 3, 2, 2), (64, 64, 5, 5)):
        given = [pattern(shape, rank, torch.float32) for rank in range(2)]
        parameter = torch.nn.Parameter(torch.zeros(shape).to(memory_format=torch.channels_last))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum)
        for _ in range(2):
            optimizer.zero_grad()
            mine = given[world.rank].to(memory_format=torch.channels_last)
            (parameter * mine).sum().backward()
            optimizer.synchronize()
            assert torch.equal(parameter.grad, given[0] + given[1])
            with optimizer.skip_synchronize():
                optimizer.step()
        assert torch.equal(parameter, -2 * (given[0] + given[1]))


@ranks(2)
@both_ways
def test_ranks_may_lay_small_parameters_out_differently(world: World) -> None:
    hvd.init()
    shape = (2, 3, 2, 2)
    given = [pattern(shape, rank, torch.float32) for rank in range(2)]
    layout = torch.channels_last if world.rank else torch.contiguous_format
    parameter = torch.nn.Parameter(torch.zeros(shape).to(memory_format=layout))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum)
    (parameter * given[world.rank].to(memory_format=layout)).sum().backward()
    optimizer.step()
    assert torch.equal(parameter, -(given[0] + given[1]))


@ranks(2)
@both_ways
def test_a_gradient_of_another_dtype(world: World) -> None:
    """A bfloat16 parameter whose gradient is kept in float32: 257 has nine bits."""
    hvd.init()
    for count in (4, 100_000):
        parameter = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16))
        parameter.grad_dtype = torch.float32  # type: ignore[attr-defined]
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
        if world.rank == 0:
            parameter.grad = torch.full((count,), 256.0)
        else:
            parameter.grad = torch.full((count,), 1.0)
        optimizer.synchronize()
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter.grad, torch.full((count,), 257.0))


@ranks(2)
@both_ways
def test_two_optimizers_of_equally_named_models(world: World) -> None:
    """A GAN: both models call their layers "0", and the critic's gradients come with the other's.

    The names collided in Horovod, and clearing what nobody had stepped with was an error.
    """
    hvd.init()
    critic, maker = make_parameters(((3,), (2, 5))), make_parameters(((3,), (2, 5)))
    pair = []
    for parameters in (critic, maker):
        names = [(str(place), p) for place, p in enumerate(parameters)]
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        pair.append(hvd.DistributedOptimizer(optimizer, names, op=hvd.Sum))
    critic_optimizer, maker_optimizer = pair
    shapes = ((3,), (2, 5))
    for step in range(3):
        critic_optimizer.zero_grad()
        backward(critic, pull_of(world.rank, step, shapes))
        maker_optimizer.zero_grad()
        # Through both: what the critic gets here is a pass too many for it.
        critic_optimizer.step()
        critic_sums = combined([pull_of(rank, step, shapes) for rank in range(2)])
        assert_gradients(critic, critic_sums)
        critic_optimizer.zero_grad()
        backward(critic + maker, pull_of(world.rank, step + 9, shapes * 2))
        maker_optimizer.step()
        sums = combined([pull_of(rank, step + 9, shapes * 2) for rank in range(2)])
        assert_gradients(maker, sums[2:])


@ranks(2)
@both_ways
def test_two_optimizers_in_flight_at_once(world: World) -> None:
    hvd.init()
    first, second = make_parameters(), make_parameters()
    optimizers = [
        hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
        for parameters in (first, second)
    ]
    for step in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(first, pull_of(world.rank, step))
        backward(second, pull_of(world.rank, step + 5))
        # Ranks may wait in another order than they submitted.
        for optimizer in optimizers if world.rank else reversed(optimizers):
            optimizer.step()
        assert_gradients(first, combined(all_ranks(step)))
        assert_gradients(second, combined(all_ranks(step + 5)))


@ranks(2)
@both_ways
def test_parameters_belong_to_the_last_optimizer(world: World) -> None:
    """A notebook cell that is run again makes a new optimizer over the same model."""
    hvd.init()
    parameters = make_parameters()
    old = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    new = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5), op=hvd.Sum)
    backward(parameters, pull_of(world.rank))
    new.step()
    assert_gradients(parameters, combined(all_ranks()))
    with pytest.raises(StateError, match="were given to another one"):
        old.step()


@ranks(2)
@both_ways
def test_in_another_world_it_is_set_up_anew(world: World) -> None:
    """After shutdown() and init() ranks may be others; here the optimizer only thinks so."""
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    for step in range(3):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step)))
        optimizer._kadril.world = None
    assert all(len(p._post_accumulate_grad_hooks) == 1 for p in parameters)


@ranks(2)
@both_ways
def test_an_optimizer_that_is_gone_reduces_nothing(world: World) -> None:
    """Hooks of such an optimizer would submit requests that nobody waits for."""
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Sum)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    for _ in range(3):  # more than one pass would be too many for it
        backward(parameters, pull_of(world.rank))
    assert_gradients(parameters, [3 * each for each in pull_of(world.rank) if each is not None])


@ranks(2, 3)
@both_ways
def test_models_of_different_shapes_are_told(world: World) -> None:
    """Buckets may be of the same size all the same: elements would be added to strangers."""
    hvd.init()
    for ours, theirs in (
        (((3,), (4,)), ((4,), (3,))),
        (((3,), (4,)), ((3,), (4,), (2,))),
        (((3,), (100_000,)), ((3,), (100_001,))),
        (((2, 3),), ((3, 2),)),
    ):
        shapes = theirs if world.rank == 1 else ours
        parameters = make_parameters(shapes)
        names = [(f"layer.{place}", p) for place, p in enumerate(parameters)]
        # Models with other names would wait for each other; the stall report shows both.
        optimizer = torch.optim.SGD(parameters[: len(ours)], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, names[: len(ours)])
        if len(shapes) > len(ours):  # one more on rank 1, which is one more request there
            optimizer.add_param_group({"params": parameters[len(ours) :]})
        backward(parameters, pull_of(0, 0, shapes))
        with pytest.raises(MismatchError, match=r"on rank 0 and .* on rank 1|Rank 1 has 1 more"):
            optimizer.step()
        with pytest.raises(StateError, match="ranks have different parameters"):
            optimizer.step()
    same = make_parameters()  # and what comes next works
    optimizer = hvd.DistributedOptimizer(momentum_sgd(same), op=hvd.Sum)
    backward(same, pull_of(world.rank))
    optimizer.step()
    assert_gradients(same, combined(all_ranks()))


@ranks(2)
@both_ways
def test_different_settings_are_told(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    compression = hvd.Compression.fp16 if world.rank else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), compression=compression)
    backward(parameters, pull_of(world.rank))
    with pytest.raises(MismatchError, match="compression=FP16Compressor"):
        optimizer.step()


@ranks(3, 4)
@both_ways
def test_a_process_set_shares_and_others_train_alone(world: World) -> None:
    hvd.init()
    members = [0, 2]
    process_set = hvd.add_process_set(members)
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(
        momentum_sgd(parameters), op=hvd.Sum, process_set=process_set
    )
    for step in range(2):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step))
        optimizer.step()
        pulls = [pull_of(rank, step) for rank in members]
        alone = [pull_of(world.rank, step)]
        assert_gradients(parameters, combined(pulls if world.rank in members else alone))
    hvd.remove_process_set(process_set)


@ranks(1)
@both_ways
def test_a_world_of_one_has_no_hooks(world: World) -> None:
    hvd.init()
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters))
    for _ in range(3):
        backward(parameters, pull_of(0))
    assert all(not p._post_accumulate_grad_hooks for p in parameters)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert_gradients(parameters, [3 * each for each in pull_of(0) if each is not None])
