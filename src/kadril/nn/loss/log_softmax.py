"""Log-softmax over a dim that is split among workers.

    y_i = x_i - m - log s         m = max_j x_j,   s = sum_j exp(x_j - m)        over all workers
    x*_i = y*_i - exp(y_i) sum_j y*_j

Two collectives forward, one backward, each of one number for every position of the other dims. As
the largest exponent is 0, s is between 1 and the number of classes: nothing overflows, and no more
is lost than in torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from kadril.ops.all_sum_reduce import SumOperator, reduced
from kadril.ops.calling import anchor_for, apply
from kadril.ops.linear_operator import Adjoint, pull_back
from kadril.partition import Group

__all__ = ["log_softmax"]


def log_softmax(
    x: torch.Tensor, dim: int, group: Group, *, requires_grad: bool, what: str
) -> torch.Tensor:
    """Compute log-softmax over a split dim; collective over the group.

    Args:
        x: this worker's part, of float32 or float64.
        dim: which is split among the workers; the others are the same on all.
        group: those workers.
        requires_grad: whether any worker's x does.
        what: name of the layer in errors.
    """
    if group.transport.size == 1:
        return functional.log_softmax(x, dim)
    return apply(LogSoftmaxFunction, x, anchor_for(requires_grad), dim, group, what)


class LogSoftmaxFunction(torch.autograd.Function):
    """See the equations at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, _: torch.Tensor, dim: int, group: Group, what: str
    ) -> torch.Tensor:
        """y = x - m - log s."""
        ctx.dim, ctx.group, ctx.what = dim, group, what
        if x.shape[dim]:
            largest = x.amax(dim, keepdim=True)
        else:
            largest = x.sum(dim, keepdim=True).fill_(-torch.inf)
        group.transport.allreduce(largest, "max", name=f"{what}: largest")
        away = x - largest
        scale = reduced(away.exp().sum(dim, keepdim=True), group, f"{what}: sum")
        y = away.sub_(scale.log_())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = y* - exp(y) sum y*."""
        (y,) = ctx.saved_tensors
        sums = grads[0].sum(ctx.dim, keepdim=True)
        adjoint = Adjoint(SumOperator(ctx.group, ctx.what), sums.shape, sums.dtype)
        total = pull_back(sums, adjoint)
        return torch.addcmul(grads[0], y.exp(), total, value=-1), None, None, None, None
