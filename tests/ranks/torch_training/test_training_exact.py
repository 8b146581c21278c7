"""Training on ranks has the bits of one process that sees all batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gradient_kit import assert_same, backward, combined, two_layers
from training_kit import (
    all_ranks,
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

MAKERS: list[Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = [
    momentum_sgd,
    lambda p: torch.optim.Adam(p, lr=0.1),
    lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    lambda p: torch.optim.Adagrad(p, lr=0.1),
    lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
]


def named(parameters: list[torch.nn.Parameter]) -> list[tuple[str, torch.Tensor]]:
    return [(f"layer.{place}", parameter) for place, parameter in enumerate(parameters)]


def check_steps(make: Callable[..., torch.optim.Optimizer], op: int, set_to_none: bool) -> None:
    divisor = hvd.size() if op == hvd.Average else 1
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(make(parameters), named(parameters), op=op)
    for step in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(parameters, pull_of(hvd.rank(), step))
        optimizer.step()
        assert_gradients(parameters, combined(all_ranks(step), divisor))
    expected = one_process(make, [combined(all_ranks(step), divisor) for step in range(4)])
    assert_same(parameters, expected)


@ranks(1, 2, 3, 4)
@both_ways
def test_every_optimizer_has_the_bits_of_one_process(world: World) -> None:
    hvd.init()
    for make in MAKERS:
        check_steps(make, hvd.Sum, set_to_none=True)
    check_steps(momentum_sgd, hvd.Sum, set_to_none=False)
    if world.size != 3:  # a third is not exact
        check_steps(momentum_sgd, hvd.Average, set_to_none=True)
        check_steps(momentum_sgd, hvd.Average, set_to_none=False)


@ranks(2, 3, transports=("c10d", "mpi:openmpi", "tiered"))
@both_ways
def test_the_same_on_other_transports(world: World) -> None:
    hvd.init()
    check_steps(momentum_sgd, hvd.Sum, set_to_none=True)
    check_steps(momentum_sgd, hvd.Sum, set_to_none=False)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(rows).square().sum().backward()
        optimizer.step()


@ranks(1, 2, 3, 4)
@both_ways
def test_a_model_learns_as_on_the_whole_batch(world: World) -> None:
    """With weights and data of few bits all products and sums are exact, in any order."""
    hvd.init()
    numbers = torch.arange(world.size * 2 * 6, dtype=torch.float64).reshape(world.size * 2, 6)
    whole = numbers * 3 % 5 - 2
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    train(model, optimizer, whole[world.rank * 2 : world.rank * 2 + 2])
    alone = two_layers()
    train(alone, torch.optim.SGD(alone.parameters(), lr=2.0**-9), whole)
    assert_same(model.parameters(), alone.parameters())


@ranks(2)
@both_ways
def test_dtypes_travel_in_their_own_buckets(world: World) -> None:
    hvd.init()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
        parameters = make_parameters(((3,), (2, 2)), dtype) + make_parameters(((5,),))
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        hvd.DistributedOptimizer(optimizer, named(parameters), op=hvd.Sum)
        shapes = ((3,), (2, 2), (5,))
        pulls = [pull_of(rank, 0, shapes) for rank in range(2)]
        backward_real(parameters, pulls[world.rank])
        optimizer.synchronize()
        expected = [
            None if each is None else each.to(parameter.dtype)
            for each, parameter in zip(combined(pulls), parameters, strict=True)
        ]
        assert_gradients(parameters, expected)


def backward_real(parameters: list[torch.nn.Parameter], pull: list[torch.Tensor | None]) -> None:
    """Make gradients of mixed dtypes, of the real part of complex ones; see `backward`."""
    terms = []
    for parameter, each in zip(parameters, pull, strict=True):
        real = parameter.real if parameter.is_complex() else parameter
        assert each is not None
        terms.append((real * each.to(real.dtype)).sum().double())
    sum(terms[1:], terms[0]).backward()
