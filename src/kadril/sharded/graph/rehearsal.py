"""Run a model once to have it compiled, and leave no trace of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["rehearse"]


def rehearse(model: nn.Module, forward: Callable[..., Any], x: Any) -> None:
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
