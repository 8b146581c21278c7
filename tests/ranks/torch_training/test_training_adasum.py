"""The Adasum optimizer: ranks step by themselves, and their steps are combined."""

from __future__ import annotations

import pickle

import pytest
import torch
from gradient_kit import assert_same, backward, pattern
from training_kit import make_parameters, momentum_sgd, pull_of

import kadril.torch as hvd
from kadril.errors import UnsupportedError
from kadril.testing import ranks
from kadril.world import World

SHAPES = ((4,), (2, 2))


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return Adasum of two vectors, by its definition."""
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - (dot / (2 * aa) if aa else 0)) * a + (1 - (dot / (2 * bb) if bb else 0)) * b


@ranks(2)
def test_orthogonal_steps_add_and_equal_steps_do_not(world: World) -> None:
    """Each parameter by itself: one is pulled alike on both ranks, the other at right angles."""
    hvd.init()
    parameters = make_parameters(((2,), (2,)))
    start = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    same = torch.tensor([4.0, -8.0], dtype=torch.float64)
    across = torch.zeros(2, dtype=torch.float64)
    across[world.rank] = 16.0
    backward(parameters, [same, across])
    optimizer.step()
    both = torch.full((2,), 16.0, dtype=torch.float64)
    assert_same(parameters, [start[0] - same, start[1] - both])


@ranks(2)
def test_steps_with_momentum_are_combined(world: World) -> None:
    """Every rank keeps its own momentum. Against the definition, computed here.

    Entries are below 64; a dot product of four of them, two divisions and two products round
    less than ten times: 10 * 64 * 2^-53 in each of three steps.
    """
    hvd.init()
    parameters = make_parameters(SHAPES)
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Adasum)
    locals_ = [make_parameters(SHAPES) for _ in range(2)]
    plain = [momentum_sgd(each) for each in locals_]
    for step in range(3):
        optimizer.zero_grad()
        backward(parameters, pull_of(world.rank, step, SHAPES))
        optimizer.step()
        starts = [p.detach().clone() for p in locals_[0]]
        for rank in range(2):
            plain[rank].zero_grad()
            backward(locals_[rank], pull_of(rank, step, SHAPES))
            plain[rank].step()
        with torch.no_grad():
            for place, start in enumerate(starts):
                deltas = [locals_[rank][place] - start for rank in range(2)]
                for rank in range(2):
                    locals_[rank][place].copy_(start + adasum(*deltas))
    for found, want in zip(parameters, locals_[0], strict=True):
        assert torch.allclose(found, want, rtol=0, atol=3 * 10 * 64 * 2.0**-53)


@ranks(1, 2, 3, 4)
def test_ranks_agree_after_every_step(world: World) -> None:
    hvd.init()
    for options in ({}, {"compression": hvd.Compression.fp16}, {"backward_passes_per_step": 2}):
        parameters = make_parameters(((3,), (70_000,), (2, 2)))
        optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Adasum, **options)
        for step in range(2):
            optimizer.zero_grad()
            for _ in range(options.get("backward_passes_per_step", 1)):
                pull = pull_of(world.rank, step, ((3,), (70_000,), (2, 2)))
                pull[0] = None if world.rank == 0 else pull[0]  # a rank without that gradient
                backward(parameters, pull)
            optimizer.synchronize()
            optimizer.step()
            for parameter in parameters:
                everyone = hvd.allgather(parameter.detach()[None])
                assert_same(everyone, [everyone[0]] * world.size)
        assert not torch.equal(parameters[2], pattern((2, 2), 2, torch.float64))  # it has moved


@ranks(1)
def test_alone_it_is_the_optimizer_it_was(world: World) -> None:
    hvd.init()
    parameters, plain = make_parameters(SHAPES), make_parameters(SHAPES)
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Adasum)
    reference = momentum_sgd(plain)
    for step in range(2):
        for each, its in ((optimizer, parameters), (reference, plain)):
            each.zero_grad()
            backward(its, pull_of(0, step, SHAPES))
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()
    assert_same(parameters, plain)


@ranks(2)
def test_what_adasum_cannot_do(world: World) -> None:
    hvd.init()
    parameters = make_parameters(SHAPES)
    optimizer = hvd.DistributedOptimizer(momentum_sgd(parameters), op=hvd.Adasum)
    optimizer.synchronize()  # nothing to wait for
    with pytest.raises(UnsupportedError, match="would part for good"), optimizer.skip_synchronize():
        pass
    assert isinstance(optimizer, torch.optim.SGD)
    twin = pickle.loads(pickle.dumps(optimizer))  # noqa: S301
    assert twin.param_groups[0]["lr"] == 0.125
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    backward(parameters, pull_of(world.rank, 0, SHAPES))
    optimizer.step()
    scheduler.step()
