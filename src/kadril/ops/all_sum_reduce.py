"""All-sum-reduce: the sum over lines of workers, on each of them.

    y_r = sum_{s in line of r} x_s            x*_r = sum_{s in line of r} y*_s        (self-adjoint)

Every worker's `y` is a result of its own: where all of them go into a loss, gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kadril.ops.calling import apply
from kadril.partition import Group, Partition

__all__ = ["all_sum_reduce", "axes_to_reduce", "sum_over"]


def all_sum_reduce(
    x: torch.Tensor,
    P_x: Partition,
    axes_reduce: Sequence[int] | None = None,
    axes_keep: Sequence[int] | None = None,
    *,
    what: str = "AllSumReduce",
) -> torch.Tensor:
    """Sum over axes of a partition; collective over it.

    Args:
        x: of the same shape on all workers in line; returned as a copy on other ranks.
        P_x: whose axes.
        axes_reduce: to sum over.
        axes_keep: all others, instead.
        what: for errors.

    Returns:
        A new tensor, also where there is nothing to sum.

    Raises:
        ValueError: not exactly one of the two was given, or there is no such axis.
        MismatchError: shapes or dtypes differ; on every worker in line.
    """
    axes = axes_to_reduce(P_x, axes_reduce, axes_keep)
    if not P_x.active:
        return x.clone()
    return sum_over(x, P_x.axis_group(axes), what)


def sum_over(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """The sum over a group, on each of its ranks."""
    return apply(AllSumReduceFunction, x, group, what)


def axes_to_reduce(
    P_x: Partition, axes_reduce: Sequence[int] | None, axes_keep: Sequence[int] | None
) -> list[int]:
    """The axes that are summed over.

    Raises:
        ValueError: not exactly one of the two was given, or there is no such axis.
    """
    if (axes_reduce is None) == (axes_keep is None):
        raise ValueError("give either axes_reduce or axes_keep")
    given = axes_keep if axes_reduce is None else axes_reduce
    for axis in given or ():
        if not -P_x.dim <= axis < P_x.dim:
            raise ValueError(f"{P_x!r} has no axis {axis}")
    chosen = {axis % P_x.dim for axis in given or ()}
    return [axis for axis in range(P_x.dim) if (axis in chosen) == (axes_reduce is not None)]


def reduced(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """The sum, in new memory."""
    x = x.detach().contiguous()
    if group.transport.size == 1:
        return x.clone()
    y = torch.empty_like(x)
    group.transport.allreduce(x, out=y, name=what)
    return y


class AllSumReduceFunction(torch.autograd.Function):
    """The sum, which is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
        """y_r = sum_s x_s."""
        ctx.group, ctx.what = group, what
        return reduced(x, group, what)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x*_r = sum_s y*_s."""
        return reduced(grads[0], ctx.group, f"adjoint of {ctx.what}"), None, None
