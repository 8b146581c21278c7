"""Run a model once on an example to have it compiled; nothing else of it changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["example_of", "original", "remember", "run_example"]

# What a model was compiled for, for as long as it lives.
examples: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


def original(model: nn.Module) -> nn.Module:
    """Return the model itself, where it is given as `torch.compile` has wrapped it."""
    found: nn.Module = getattr(model, "_orig_mod", model)
    return found


def remember(model: nn.Module, x: Any) -> None:
    """Keep an example for `example_of`."""
    examples[original(model)] = x


def example_of(model: nn.Module) -> Any:
    """Return what a model was compiled for.

    Raises:
        ValueError: it is not known.
    """
    try:
        return examples[original(model)]
    except KeyError:
        raise ValueError(
            f"there is no example of what this {type(original(model)).__name__} is called with: it"
            " was not compiled by optimize_for(model, x, ...). Give one: explain(model, x)"
        ) from None


def run_example(model: nn.Module, forward: Callable[..., Any], x: Any) -> None:
    """Call `forward` with an example, then put buffers and random numbers back.

    Gradients are recorded, so that the backward graphs are made too; they are not run, so nothing
    is communicated.

    Args:
        model: whose buffers are kept, such as the statistics of batch normalization.
        forward: the model itself, or what was compiled of it.
        x: one argument, a tuple of arguments, or a mapping of keyword arguments.
    """
    with unchanged(model), torch.random.fork_rng(), torch.enable_grad():
        if isinstance(x, Mapping):
            forward(**x)
        elif isinstance(x, tuple):
            forward(*x)
        else:
            forward(x)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put the buffers of a model back."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
