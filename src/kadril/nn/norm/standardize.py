"""Standardizing rows of numbers that are spread over workers: what all norms have in common.

A block of a tensor is looked at as a matrix of rows; every row belongs to one statistic, and other
rows of it may be on other workers:

    batch norm      rows (n, c)                          statistic  c             of all n and space
    group norm      rows (n, c)                          statistic  n, group of c
    layer norm      rows of the leading dims             statistic  the row       split dims

With the statistics mean and var of N numbers each, xhat = (x - mean) / sqrt(var + eps), and w and b
one number for each row:

    forward     y  = w xhat + b
    backward    g  = w y*,   s1 = sum g,   s2 = sum g xhat                      over the statistic
                x* = (g - s1 / N - xhat s2 / N) / sqrt(var + eps)
                w* = sum y* xhat,   b* = sum y*                                 over the row

Each direction takes one collective over the workers that share statistics.

How far the statistics are off, with unit roundoff u of the dtype and kappa^2 = 1 + mean^2 / var:
rows of n numbers are reduced by the corrected two-pass algorithm, m2 = sum (x - k)^2 - n d^2 with
k about the mean and d = sum (x - k) / n, whose relative error is below n u + n^3 u^3 kappa^2 (Chan,
Golub, LeVeque 1983), where the usual formula E x^2 - (E x)^2 has n u kappa^2. Rows are then merged
in float64 from (count, mean, m2), by sums of terms that are not negative: P workers and R rows add
(P + R + 4) 2^-53 at most. The mean itself is k + d, kept in float64, and x - mean is taken as
(x - float(mean)) - rest: it has no more error than the rounding of x - float(mean), however large
the mean is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from kadril.ops.all_sum_reduce import reduced
from kadril.ops.calling import anchor_for, apply
from kadril.partition import Group

__all__ = ["Rows", "Statistics", "standardize", "statistics_of"]


class Rows(NamedTuple):
    """Which rows belong together.

    Attributes:
        group: the workers that share statistics.
        owner: statistic that each local row belongs to.
        counts: how many numbers each worker of the group has of each statistic, shape (workers,
            statistics), in float64; what is 0 is not looked at.
    """

    group: Group
    owner: torch.Tensor
    counts: torch.Tensor


class Statistics(NamedTuple):
    """Mean and (biased) variance of some sets of numbers, each of shape (statistics,), in float64.

    Attributes:
        mean: sum / num_values.
        var: sum of squared distances to the mean / num_values.
        num_values: in each set.
    """

    mean: torch.Tensor
    var: torch.Tensor
    num_values: torch.Tensor


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for the 16-bit ones."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def row_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and sum of squared distances to it of each row, in float64; zeros for empty ones."""
    if x.shape[1] == 0:
        nothing = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
        return nothing, nothing.clone()
    x = x.to(computed_in(x.dtype))
    near = x.mean(1)
    away = x - near[:, None]
    correction = away.mean(1).double()
    m2 = away.square_().sum(1).double() - x.shape[1] * correction.square()
    return near.double() + correction, m2.clamp_(min=0.0)


def statistics_of(x: torch.Tensor, rows: Rows, what: str) -> Statistics:
    """Mean and variance over all workers that share statistics, the same bits on each; collective.

    Args:
        x: local rows, of shape (rows, numbers in each).
        rows: what belongs together.
        what: for errors.
    """
    mean, m2 = row_moments(x.detach())
    here = rows.counts[rows.group.transport.rank]
    local = torch.zeros(2, here.numel(), dtype=torch.float64, device=x.device)
    local[0].index_add_(0, rows.owner, mean * x.shape[1]).div_(here.clamp(min=1.0))
    spread_of_means = (mean - local[0][rows.owner]).square_() * x.shape[1]
    local[1].index_add_(0, rows.owner, m2 + spread_of_means)
    size = rows.group.transport.size
    gathered = local.new_empty(size, *local.shape)
    rows.group.transport.allgatherv(local, gathered, [local.numel()] * size, name=what)
    means, m2s = gathered[:, 0], gathered[:, 1]
    count = rows.counts.sum(0)
    whole_mean = (rows.counts * means).sum(0) / count
    whole_m2 = (m2s + rows.counts * (means - whole_mean).square_()).sum(0)
    return Statistics(whole_mean, whole_m2 / count, count)


def standardize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    statistics: Statistics,
    rows: Rows,
    *,
    eps: float,
    requires_grad: bool,
    what: str,
) -> torch.Tensor:
    """y = weight * xhat + bias, with the statistics as functions of x in the backward pass.

    Args:
        x: local rows.
        weight: one number for each row, or None.
        bias: the same.
        statistics: of these rows.
        rows: what belongs together.
        eps: added to the variance.
        requires_grad: whether any worker's x does.
        what: for errors.
    """
    anchor = anchor_for(requires_grad)
    return apply(StandardizeFunction, x, weight, bias, anchor, statistics, rows, eps, what)


class StandardizeFunction(torch.autograd.Function):
    """See the equations at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        _: torch.Tensor,
        statistics: Statistics,
        rows: Rows,
        eps: float,
        what: str,
    ) -> torch.Tensor:
        """y = w xhat + b."""
        scale = (statistics.var + eps).rsqrt()
        ctx.rows, ctx.count, ctx.what = rows, statistics.num_values, what
        ctx.weight_dtype = None if weight is None else weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        wide = computed_in(x.dtype)
        mean, scale = statistics.mean[rows.owner], scale[rows.owner]
        near = mean.to(wide)
        rest = mean - near
        weights = torch.ones_like(scale) if weight is None else weight.double()
        factor = scale * weights
        shift = -rest * factor if bias is None else bias.double() - rest * factor
        ctx.save_for_backward(x, near, rest, scale, weights)
        y = x.to(wide) - near[:, None]
        return y.mul_(column(factor, y)).add_(column(shift, y)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = (g - s1 / N - xhat s2 / N) / sqrt(var + eps)."""
        x, near, rest, scale, weights = ctx.saved_tensors
        rows = ctx.rows
        g = grads[0].to(computed_in(grads[0].dtype))
        away = x.to(g.dtype) - near[:, None]
        sum_g = g.sum(1).double()
        sum_g_xhat = ((g * away).sum(1).double() - rest * sum_g) * scale
        local = torch.zeros(2, ctx.count.numel(), dtype=torch.float64, device=x.device)
        local.index_add_(1, rows.owner, torch.stack([sum_g, sum_g_xhat]) * weights)
        whole = reduced(local, rows.group, f"adjoint of {ctx.what}") / ctx.count
        of_rows = whole[:, rows.owner]
        grad_x = None
        if ctx.needs_input_grad[0]:
            slope = -scale.square() * of_rows[1]
            shift = -slope * rest - scale * of_rows[0]
            away.mul_(column(slope, away)).addcmul_(g, column(scale * weights, away))
            grad_x = away.add_(column(shift, away)).to(x.dtype)
        grad_weight = None if ctx.weight_dtype is None else sum_g_xhat.to(ctx.weight_dtype)
        grad_bias = None if ctx.bias_dtype is None else sum_g.to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias, *[None] * 5


def column(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One number for each row, to be used with a matrix."""
    return numbers.to(like.dtype)[:, None]
