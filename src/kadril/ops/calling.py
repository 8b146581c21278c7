"""Calling an autograd function, with a type."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

__all__ = ["anchor_for", "apply", "beneath"]


def apply(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    """The result of a function that gives one tensor.

    Past `Function.apply`, which looks for the wrappers of `torch.func` and takes a third of the
    time of a short operation for it; what is beneath it refuses those by itself.
    """
    return beneath(function)(*arguments)


@functools.cache
def beneath(function: type[torch.autograd.Function]) -> Callable[..., torch.Tensor]:
    """What `Function.apply` calls in the end."""
    found: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return found


def anchor_for(requires_grad: bool) -> torch.Tensor:
    """A tensor without elements, to be given to a function besides its input.

    It keeps a rank in the graph whose own input needs no gradient, when other ranks' inputs do: all
    of them have to be there for the collectives of the backward pass.
    """
    return torch.empty(0, requires_grad=requires_grad and torch.is_grad_enabled())
