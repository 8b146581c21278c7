"""Parameters whose gradients a test chooses, and what one process would make of them.

With loss = sum_i <p_i, c_i> the gradient of p_i is c_i, whatever p_i is. Where the c_i are small
integers their sums over ranks are exact in any order, so every optimizer, after any number of
steps, has the bits of one process that was given the combined gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

import kadril.torch as hvd
from kadril.torch.optimizer import reducer
from kadril.world import World

# Below and above the size from which a gradient travels by itself, 0-dim and empty ones too.
SHAPES: tuple[tuple[int, ...], ...] = ((3,), (2, 5), (), (0,), (70_000,), (4, 1, 3))

Pull = list[torch.Tensor | None]


def make_parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64
) -> list[torch.nn.Parameter]:
    """The same small integers on every rank."""
    return [torch.nn.Parameter(pattern(shape, seed, dtype)) for seed, shape in enumerate(shapes)]


def pattern(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Integers from -5 to 5."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    return ((numbers * 7 + seed * 5) % 11 - 5).to(dtype).reshape(shape)


def pull_of(
    rank: int, step: int = 0, shapes: Sequence[tuple[int, ...]] = SHAPES, **kind: torch.dtype
) -> Pull:
    """The gradients that one rank has in one step."""
    return [
        pattern(shape, 3 * rank + 17 * step + place, **kind) for place, shape in enumerate(shapes)
    ]


def backward(parameters: Iterable[torch.Tensor], pull: Pull) -> None:
    """Give each parameter its gradient through autograd; None leaves it out of the graph."""
    terms = [(p * c).sum() for p, c in zip(parameters, pull, strict=True) if c is not None]
    if terms:
        sum(terms[1:], terms[0]).backward()


def combined(pulls: Sequence[Pull], divisor: int = 1) -> list[torch.Tensor | None]:
    """Return the sum over all ranks where any has a gradient, divided."""
    results: list[torch.Tensor | None] = []
    for column in zip(*pulls, strict=True):
        present = [each for each in column if each is not None]
        results.append(sum(present[1:], present[0]) / divisor if present else None)
    return results


def one_process(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    gradients: Sequence[list[torch.Tensor | None]],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float64,
) -> list[torch.nn.Parameter]:
    """Parameters after a plain optimizer took a step with each list of gradients."""
    parameters = make_parameters(shapes, dtype)
    optimizer = make(parameters)
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = None if gradient is None else gradient.to(dtype)
        optimizer.step()
    return parameters


def all_ranks(step: int = 0) -> list[Pull]:
    """The pulls of all ranks in one step."""
    return [pull_of(rank, step) for rank in range(hvd.size())]


def assert_same(left: Iterable[torch.Tensor], right: Iterable[torch.Tensor]) -> None:
    """Equal to the last bit."""
    for place, (a, b) in enumerate(zip(left, right, strict=True)):
        assert torch.equal(a, b), f"parameter {place}: {a.detach()} is not {b.detach()}"


def assert_gradients(
    parameters: Iterable[torch.Tensor], expected: Iterable[torch.Tensor | None]
) -> None:
    """Equal to the last bit, and None where None is expected."""
    for place, (parameter, want) in enumerate(zip(parameters, expected, strict=True)):
        if want is None:
            assert parameter.grad is None, f"parameter {place} has a gradient"
        else:
            assert parameter.grad is not None, f"parameter {place} has no gradient"
            found = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            assert torch.equal(found, want), f"parameter {place}"


def both_ways(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with reductions during the backward pass, and after it.

    Otherwise the machine would decide: it is during, where cores are left over.
    """

    @functools.wraps(test)
    def run(world: World, **arguments: Any) -> None:
        for overlaps in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reducer, "should_overlap", lambda _, overlaps=overlaps: overlaps)
                test(world, **arguments)

    return run


def momentum_sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer with state and weight decay; all its numbers are powers of two."""
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.5, weight_decay=0.25)
