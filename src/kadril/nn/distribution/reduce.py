"""Rules for calls along dims: sums, means and extremes over them, softmax, chunks, ...

A sum over dims that are split is the sum of what the workers have, and a replicated value:

    y = sum_r sum(x_r)         x*_r = y*  on each element            (`ops.total`)

Extremes are gathered, one for each worker, and compared. The gradient goes in equal parts to all
elements that are the extreme, whichever worker has them, as torch's does. For all else the dims
have to be whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from kadril import ops
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, axes_of, without
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.replicas import Gatherer
from kadril.ops.structure import agree
from kadril.partition import Group

__all__ = [
    "all_dims",
    "along",
    "dims_of",
    "extreme",
    "left_of",
    "make_extreme",
    "make_sum",
    "mean",
    "summed",
]

Extreme = Callable[..., torch.Tensor]


def dims_of(call: Call, default: int | None = None, place: int = 1) -> list[int]:
    """The dims that a call goes along; all of them where it names none.

    Args:
        call: the call.
        default: the dim, where it names none; None for all dims.
        place: of the dim among the arguments.
    """
    given = call.argument(place, "dim", call.argument(place, "axis", default))
    return all_dims(given, len(call.shape(call.operand)))


def all_dims(given: Any, num_dims: int) -> list[int]:
    """Dims as torch takes them, one or several or none for all, counted from the first."""
    if given is None or given in ([], ()):
        return list(range(num_dims))
    dims = [given] if isinstance(given, int) else list(given)
    return sorted(dim % max(1, num_dims) for dim in dims)


def left_of(layout: Layout, dims: Iterable[int], num_dims: int) -> Layout:
    """A layout after some dims were reduced: they are whole, or no more there."""
    gone = set(dims)
    if num_dims == len(layout):
        return without(layout, gone)
    return tuple(axis for dim, axis in enumerate(layout) if dim not in gone)


def along(default: int | None = None, place: int = 1) -> Rule:
    """The rule for calls that need their dims whole.

    Args:
        default: the dim, where the call names none; None for all dims.
        place: of the dim among the arguments.
    """

    def rule(call: Call) -> Decision:
        operand = call.operand
        dims = dims_of(call, default, place)
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
    sizes = call.shape(call.operand)
    num = math.prod(sizes[dim] for dim in dims_of(call))
    return reduction(call, partial(make_sum, is_mean=True, num=num))


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
    layout: Layout,
    dims: Sequence[int],
    keepdim: bool,
    what: str,
    lines: Lines,
    *,
    is_mean: bool,
    num: int | None = None,
) -> Running:
    """Sum blocks, then over the workers.

    Args:
        layout: of the operand.
        dims: to sum over.
        keepdim: whether they stay.
        what: for errors.
        lines: of the partition.
        is_mean: whether to divide by the number of elements.
        num: how many there are; asked for in each call where None, for layers, which take any size.
    """
    axes = axes_of(tuple(layout[dim] for dim in dims))
    group = lines.group(axes) if lines.P.active else None
    P_x = lines.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        y = ops.total(x.sum(dim=list(dims), keepdim=keepdim), group, what=what)
        if not is_mean:
            return y
        if num is not None:
            return y / num
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
    group = lines.group(axes_of(only)) if lines.P.active else None

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        with torch.no_grad():
            found = function(gather(function(x, dim=list(dims), keepdim=True)), list(dims), True)
            is_found = x == found
            num_found = is_found.sum(list(dims), keepdim=True).to(torch.float64)
            num_found = ops.total(num_found, group, what=what)
        y: torch.Tensor = ExtremeFunction.apply(  # type: ignore[no-untyped-call]
            x, found, is_found, num_found, group
        )
        return y if keepdim else y.squeeze(tuple(dims))

    return run


class ExtremeFunction(torch.autograd.Function):
    """The extreme of what all workers have; its gradient goes in equal parts to all that are it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        found: torch.Tensor,
        is_found: torch.Tensor,
        num_found: torch.Tensor,
        group: Group,
    ) -> torch.Tensor:
        """y = max over all workers."""
        ctx.save_for_backward(is_found, num_found)
        ctx.group = group
        return found.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = y* / n where x = y, for n such elements."""
        is_found, num_found = ctx.saved_tensors
        share = is_found.to(grads[0].dtype) / num_found.to(grads[0].dtype)
        # Replicated, and used by each worker for its block: so are gradients of it, which are
        # summed. Only they are collective.
        slope = ops.spread(grads[0], ctx.group) if torch.is_grad_enabled() else grads[0]
        return slope * share, None, None, None, None
