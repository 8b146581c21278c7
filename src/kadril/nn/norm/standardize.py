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

Each direction takes one collective over the workers that share statistics. What is done to numbers
one by one is done to a piece of the matrix at a time, which stays in a cache: so the memory of the
whole is read and written as seldom as by a fused kernel, and new memory is for results only.

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

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from kadril.ops.all_sum_reduce import reduced, sum_over
from kadril.ops.calling import anchor_for, apply_tied, tie, tied
from kadril.ops.composed import differentiate
from kadril.partition import Group

__all__ = ["Rows", "Statistics", "standardize", "statistics_of"]

# Numbers in a piece of a matrix: 1 MiB of float32. Smaller ones cost more calls than they save.
PIECE = 1 << 18


class Rows(NamedTuple):
    """Rows that share statistics, and the workers that hold them.

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
    """Return the dtype to compute in: float32 for tensors of 16 bits."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def pieces(x: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of pieces that together make up a matrix."""
    num_rows, num_columns = x.shape
    width = PIECE if x.device.type == "cpu" else max(1, x.numel())
    height = max(1, width // max(1, num_columns))
    for row in range(0, num_rows, height):
        for column in range(0, num_columns, width):
            yield slice(row, row + height), slice(column, column + width)


@contextlib.contextmanager
def away_from(near: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> Iterator[torch.Tensor]:
    """Provide x - near to work on, in the memory of `out`, or beside it if that is of 16 bits."""
    if out.dtype == near.dtype:
        yield torch.sub(x, near[:, None], out=out)
    else:
        away = x.to(near.dtype) - near[:, None]
        yield away
        out.copy_(away)


def row_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and sum of squared distances to it of each row, in float64; 0 for empty rows."""
    sums = torch.zeros(2, x.shape[0], dtype=torch.float64, device=x.device)
    if x.shape[1] == 0:
        return sums[0], sums[1]
    wide = computed_in(x.dtype)
    near = x.mean(1, dtype=wide)
    for rows, columns in pieces(x):
        away = x[rows, columns].to(wide) - near[rows, None]
        sums[0, rows] += away.sum(1)
        sums[1, rows] += torch.linalg.vector_norm(away, dim=1).double().square_()
    correction = sums[0] / x.shape[1]
    m2 = sums[1] - x.shape[1] * correction.square()
    return near.double() + correction, m2.clamp_(min=0.0)


def statistics_of(x: torch.Tensor, rows: Rows, what: str) -> Statistics:
    """Return mean and variance over all workers of the group, the same bits on each; collective.

    Args:
        x: local rows, of shape (rows, numbers in each).
        rows: what belongs together.
        what: name of the layer in errors.
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
    """Compute weight * xhat + bias; the backward pass sees the statistics as functions of x.

    Args:
        x: local rows.
        weight: one number for each row, or None.
        bias: the same.
        statistics: of these rows.
        rows: what belongs together.
        eps: added to the variance.
        requires_grad: whether any worker's x does.
        what: name of the layer in errors.
    """
    anchor = anchor_for(requires_grad)
    wanted = (requires_grad, *(each is not None and each.requires_grad for each in (weight, bias)))
    how = How(rows, statistics.num_values, eps, what, wanted)
    return apply_tied(StandardizeFunction, x, weight, bias, anchor, statistics, how)


class How(NamedTuple):
    """Settings for standardizing rows.

    Attributes:
        rows: what belongs together.
        num_values: in each statistic.
        eps: added to the variance.
        what: name of the layer in errors.
        wanted: whether any worker's x needs a gradient, and whether weight and bias do.
    """

    rows: Rows
    num_values: torch.Tensor
    eps: float
    what: str
    wanted: tuple[bool, ...]


def compose(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    near: torch.Tensor,
    rest: torch.Tensor,
    how: How,
) -> torch.Tensor:
    """Compute the same as `standardize`, by functions that have derivatives of any order.

    Args:
        x: local rows.
        weight: one number for each row, or None.
        bias: the same.
        near: the mean that each row has, in the dtype to compute in.
        rest: what that lacks; the mean as a function of x is added to these two.
        how: the rest.
    """

    def mean_of(values: torch.Tensor) -> torch.Tensor:
        """Return the mean over each statistic, as a column of one number for each row."""
        owner = how.rows.owner
        sums = values.sum(1, dtype=torch.float64)
        local = sums.new_zeros(how.num_values.numel()).index_add(0, owner, sums)
        whole = sum_over(local, how.rows.group, f"moments of {how.what}", requires_grad=True)
        return (whole / how.num_values)[owner, None]

    wide = near.dtype
    away = (x.to(wide) - near[:, None]) - rest.to(wide)[:, None]
    away = away - mean_of(away).to(wide)
    y = away * (mean_of(away.square()) + how.eps).rsqrt().to(wide)
    if weight is not None:
        y = y * weight.to(wide)[:, None]
    if bias is not None:
        y = y + bias.to(wide)[:, None]
    return y.to(x.dtype)


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
        how: How,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y = w xhat + b."""
        ctx.how = how
        wide = computed_in(x.dtype)
        owner = how.rows.owner
        mean, scale = statistics.mean[owner], (statistics.var + how.eps).rsqrt()[owner]
        near = mean.to(wide)
        rest = mean - near
        weights = torch.ones_like(scale) if weight is None else weight.double()
        factor = scale * weights
        shift = -rest * factor if bias is None else bias.double() - rest * factor
        factors, shifts = factor.to(wide)[:, None], shift.to(wide)[:, None]
        y = torch.empty_like(x)
        for part, columns in pieces(x):
            with away_from(near[part], x[part, columns], y[part, columns]) as away:
                away.mul_(factors[part]).add_(shifts[part])
        return tie(ctx, y, x, weight, bias, near, rest, scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """x* = (g - s1 / N - xhat s2 / N) / sqrt(var + eps)."""
        g = tied(ctx, grads[0])
        how: How = ctx.how
        x, weight, bias, near, rest, scale = ctx.saved_tensors[1:]
        if torch.is_grad_enabled():
            anew = partial(compose, near=near, rest=rest, how=how)
            return *differentiate(anew, (x, weight, bias), g, how.wanted), None, None, None
        found = adjoint(g, x, weight, near, rest, scale, how, needs_x=ctx.needs_input_grad[0])
        given = (x, weight, bias)
        return (
            *(
                None if one is None or like is None else one.to(like.dtype)
                for one, like in zip(found, given, strict=True)
            ),
            None,
            None,
            None,
        )


def adjoint(
    g: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    near: torch.Tensor,
    rest: torch.Tensor,
    scale: torch.Tensor,
    how: How,
    *,
    needs_x: bool,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Return x* where it is needed, w* and b*."""
    rows = how.rows
    weights = torch.ones_like(scale) if weight is None else weight.double()
    sums = torch.zeros(2, x.shape[0], dtype=torch.float64, device=x.device)
    for part, columns in pieces(x):
        g_part = g[part, columns].to(near.dtype)
        away = x[part, columns].to(near.dtype) - near[part, None]
        sums[0, part] += g_part.sum(1)
        sums[1, part] += away.mul_(g_part).sum(1)
    sum_g = sums[0]
    sum_g_xhat = (sums[1] - rest * sum_g) * scale
    local = torch.zeros(2, how.num_values.numel(), dtype=torch.float64, device=x.device)
    local.index_add_(1, rows.owner, torch.stack([sum_g, sum_g_xhat]) * weights)
    whole = reduced(local, rows.group, f"adjoint of {how.what}") / how.num_values
    if not needs_x:
        return None, sum_g_xhat, sum_g
    of_rows = whole[:, rows.owner]
    slope = -scale.square() * of_rows[1]
    shift = -slope * rest - scale * of_rows[0]
    slopes, factors, shifts = (
        each.to(near.dtype)[:, None] for each in (slope, scale * weights, shift)
    )
    grad_x = torch.empty_like(x)
    for part, columns in pieces(x):
        g_part = g[part, columns].to(near.dtype)
        with away_from(near[part], x[part, columns], grad_x[part, columns]) as away:
            away.mul_(slopes[part]).addcmul_(g_part, factors[part]).add_(shifts[part])
    return grad_x, sum_g_xhat, sum_g
