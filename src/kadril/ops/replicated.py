"""Replicated tensors: one vector, of which many workers hold identical copies.

A parameter that every worker has a copy of, a loss that every worker knows the value of. Such a
vector counts once: <a, b> is taken on one worker. With that inner product,

    spread      one -> a copy for each       y_r = x             x*  = sum_r y*_r     on each
    total       one part of each -> the sum  y = sum_r x_r       x*_r = y*            on each

are each other's adjoint. In the forward pass `spread` moves nothing: the copies are there already.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kadril.ops.all_sum_reduce import reduced
from kadril.ops.calling import uncompiled
from kadril.ops.linear_operator import Reverse, apply_operator
from kadril.partition import Group

__all__ = ["SpreadOperator", "spread", "total"]


@uncompiled
def spread(x: torch.Tensor, group: Group, *, what: str = "spread") -> torch.Tensor:
    """Use a replicated tensor for work that each worker does for itself.

    Gradients are summed over the group, so that every copy gets the whole one.

    Args:
        x: the same on all ranks of the group.
        group: the workers that hold it.
        what: name of the operation in errors.
    """
    if group.transport.size == 1:
        return x
    return apply_operator(SpreadOperator(group, what), x, requires_grad=False)


@uncompiled
def total(x: torch.Tensor, group: Group, *, what: str = "total") -> torch.Tensor:
    """Sum what the workers have, as a replicated tensor.

    Each of them may call `backward()` on a loss made of it: that is one loss, not several.

    Args:
        x: of the same shape on all ranks of the group.
        group: over whom to sum.
        what: name of the operation in errors.
    """
    if group.transport.size == 1:
        return x.clone()
    return apply_operator(Reverse(SpreadOperator(group, what)), x, requires_grad=False)


class SpreadOperator(NamedTuple):
    """A copy for each worker; the adjoint is the sum."""

    group: Group
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y_r = x."""
        return x.view_as(x)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x* = sum_r y*_r."""
        return reduced(y, self.group, what)
