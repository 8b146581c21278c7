"""Parameters whose gradients a test chooses, and what one process would make of them.

An optimizer has the bits of one process that was given the combined gradient (`gradient_kit`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from gradient_kit import Pull, patterns, step_with

import kadril.torch as hvd
from kadril.torch.optimizer import reducer
from kadril.world import World

# Below and above the size from which a gradient travels by itself, 0-dim and empty ones too.
SHAPES: tuple[tuple[int, ...], ...] = ((3,), (2, 5), (), (0,), (70_000,), (4, 1, 3))


def make_parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64
) -> list[torch.nn.Parameter]:
    """The same small integers on every rank."""
    return [torch.nn.Parameter(each) for each in patterns(shapes, 0, dtype)]


def pull_of(
    rank: int,
    step: int = 0,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float64,
) -> Pull:
    """The gradients that one rank has in one step."""
    return [*patterns(shapes, 3 * rank + 17 * step, dtype)]


def one_process(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    gradients: Sequence[Pull],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float64,
) -> list[torch.nn.Parameter]:
    """Parameters after a plain optimizer took a step with each list of gradients."""
    parameters = make_parameters(shapes, dtype)
    step_with(make(parameters), parameters, gradients)
    return parameters


def all_ranks(step: int = 0) -> list[Pull]:
    """The pulls of all ranks in one step."""
    return [pull_of(rank, step) for rank in range(hvd.size())]


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
