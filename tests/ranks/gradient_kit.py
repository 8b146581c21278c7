"""Gradients that a test chooses, and what a plain optimizer makes of them.

With loss = sum_i <p_i, c_i> the gradient of p_i is c_i, whatever p_i is. Where the c_i are small
integers their sums over ranks are exact in any order, so every optimizer, after any number of
steps, has the bits of one process that was given the combined gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

Pull = list[torch.Tensor | None]


def pattern(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Integers from -5 to 5."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    return ((numbers * 7 + seed * 5) % 11 - 5).to(dtype).reshape(shape)


def patterns(
    shapes: Sequence[tuple[int, ...]], seed: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """A pattern for each shape, each with a seed of its own."""
    return [pattern(shape, seed + place, dtype) for place, shape in enumerate(shapes)]


def backward(parameters: Iterable[torch.Tensor], pull: Pull) -> None:
    """Give each parameter its gradient through autograd; None leaves it out of the graph."""
    terms = [(p * c).sum() for p, c in zip(parameters, pull, strict=True) if c is not None]
    if terms:
        sum(terms[1:], terms[0]).backward()


def combined(pulls: Sequence[Pull], divisor: int = 1) -> Pull:
    """Return the sum over all ranks where any has a gradient, divided."""
    results: Pull = []
    for column in zip(*pulls, strict=True):
        present = [each for each in column if each is not None]
        results.append(sum(present[1:], present[0]) / divisor if present else None)
    return results


def step_with(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.nn.Parameter],
    gradients: Iterable[Pull],
) -> None:
    """Take a step with each list of gradients."""
    for pull in gradients:
        for parameter, gradient in zip(parameters, pull, strict=True):
            given = None if gradient is None else gradient.to(parameter.dtype, copy=True)
            parameter.grad = given
        optimizer.step()


def assert_same(left: Iterable[torch.Tensor], right: Iterable[torch.Tensor]) -> None:
    """Equal to the last bit."""
    for place, (a, b) in enumerate(zip(left, right, strict=True)):
        assert torch.equal(a, b), f"parameter {place}: {a.detach()} is not {b.detach()}"


def two_layers() -> torch.nn.Module:
    """Small integers as weights, float64: two steps stay within 53 bits."""
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    ).double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            numbers = torch.arange(parameter.numel()).reshape(parameter.shape)
            parameter.copy_((numbers * 5 + seed) % 7 - 3)
    return model
