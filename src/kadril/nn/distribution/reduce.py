"""Rules for calls along dims: sums, means and extremes over them, softmax, chunks, ...

A sum over dims that are split is the sum of what the workers have, and a replicated value:

    y = sum_r sum(x_r)         x*_r = y*  on each element            (`ops.total`)

Extremes are gathered, one for each worker, and compared. For all else the dims have to be whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from kadril import ops
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, axes_of, without
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.replicas import Gatherer
from kadril.ops.structure import agree

__all__ = ["along", "extreme", "make_extreme", "make_sum", "mean", "summed"]

Extreme = Callable[..., torch.Tensor]


def dims_of(call: Call, default: int | None = None) -> list[int]:
    """The dims that a call goes along; all of them where it names none."""
    num_dims = len(call.shape(call.operand))
    given = call.argument(1, "dim", call.argument(1, "axis", default))
    if given is None or given == []:
        return list(range(num_dims))
    dims = [given] if isinstance(given, int) else list(given)
    return sorted(dim % num_dims for dim in dims)


def left_of(layout: Layout, dims: Iterable[int], num_dims: int) -> Layout:
    """A layout after some dims were reduced: they are whole, or no more there."""
    gone = set(dims)
    if num_dims == len(layout):
        return without(layout, gone)
    return tuple(axis for dim, axis in enumerate(layout) if dim not in gone)


def along(default: int | None = None) -> Rule:
    """The rule for calls that need their dims whole.

    Args:
        default: the dim, where the call names none; None for all dims.
    """

    def rule(call: Call) -> Decision:
        operand = call.operand
        dims = dims_of(call, default)
        want = without(call.layout(operand), dims)

        def layout_for(result: object) -> Layout | None:
            if not isinstance(result, torch.Tensor):
                return None
            return left_of(want, dims, result.dim())

        results = call.result
        if isinstance(results, torch.Tensor):
            return as_it_is(call, {operand: want}, layout_for(results))
        return as_it_is(call, {operand: want}, [layout_for(each) for each in results])

    return rule


def summed(call: Call) -> Decision:
    """A sum over dims."""
    return reduction(call, partial(make_sum, is_mean=False))


def mean(call: Call) -> Decision:
    """A mean over dims."""
    return reduction(call, partial(make_sum, is_mean=True))


def extreme(function: Extreme) -> Rule:
    """The rule for the largest or the smallest over dims."""
    return lambda call: reduction(call, partial(make_extreme, function))


def reduction(call: Call, make: Callable[..., Running]) -> Decision:
    """A reduction over dims that may be split."""
    operand = call.operand
    if call.node.kwargs.get("dtype") is not None:
        raise Refused("it changes the dtype too; do that in a call of its own")
    dims = dims_of(call)
    layout = call.layout(operand)
    keepdim = call.result.dim() == len(layout) and len(layout) > 0
    split_dims = [dim for dim in dims if layout[dim] is not None]
    gives = left_of(layout, dims, call.result.dim())
    if not split_dims:
        return as_it_is(call, {operand: layout}, gives)
    made = partial(make, layout, dims, keepdim, call.name)
    return Decision({operand: layout}, gives, made, args=(operand,), kwargs={})


def make_sum(
    layout: Layout, dims: Sequence[int], keepdim: bool, what: str, lines: Lines, *, is_mean: bool
) -> Running:
    """Sum blocks, then over the workers."""
    axes = axes_of(tuple(layout[dim] for dim in dims))
    group = lines.group(axes) if lines.P.active else None
    P_x = lines.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        y = ops.total(x.sum(dim=list(dims), keepdim=keepdim), group, what=what)
        if not is_mean:
            return y
        blocks = agree(P_x, x, what).blocks(what)
        return y / math.prod(blocks[dim][-1].stop for dim in dims)

    return run


def make_extreme(
    function: Extreme,
    layout: Layout,
    dims: Sequence[int],
    keepdim: bool,
    what: str,
    lines: Lines,
) -> Running:
    """Find the extremes of blocks, then among those of the workers."""
    only = tuple(axis if dim in dims else None for dim, axis in enumerate(layout))
    gather = Gatherer(lines.partition(only), what)

    def run(x: torch.Tensor) -> torch.Tensor:
        return function(gather(function(x, dim=list(dims), keepdim=True)), list(dims), keepdim)

    return run
