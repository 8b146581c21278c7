"""Gradients that have gradients, for functions whose own backward is fast and has none.

backward     recorded?  no     by hand, in as few steps as can be
                        yes    compose y anew of functions that torch and `kadril.ops` can
                               differentiate to any order, and let autograd do so
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["differentiate"]


def differentiate(
    compose: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor | None],
    grad: torch.Tensor,
    wanted: Sequence[bool],
) -> list[torch.Tensor | None]:
    """Return gradients with a graph of their own; collective where `compose` is.

    Args:
        compose: gives y of the inputs.
        inputs: as the graph has them.
        grad: y*.
        wanted: whose gradients are asked for; the same on all workers, so that they are all there
            for the collectives, also where the input of one has no graph.

    Returns:
        For each input; None where it is not wanted.
    """
    used = [
        x if x is None or not wants else x.view_as(x) if x.requires_grad else as_leaf(x)
        for x, wants in zip(inputs, wanted, strict=True)
    ]
    asked = [x for x, wants in zip(used, wanted, strict=True) if x is not None and wants]
    with torch.enable_grad():
        y = compose(*used)
    found = iter(torch.autograd.grad(y, asked, grad, create_graph=True, materialize_grads=True))
    return [
        next(found) if x is not None and wants else None
        for x, wants in zip(used, wanted, strict=True)
    ]


def as_leaf(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, as a leaf of a graph."""
    return x.detach().requires_grad_()
