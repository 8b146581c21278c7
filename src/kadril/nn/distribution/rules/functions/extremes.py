"""Rules for the largest and the smallest over dims that may be split, and their places.

| 3 1 | 7 2 | 7 5 |        each worker: value and global index      (3, 0)  (7, 2)  (7, 4)
                           of what they found, the first of the best           (7, 2)

The extremes of all workers are gathered and compared. Where indices are asked for, the gradient
goes to the element with that index. For `amax` and its like it goes in equal parts to all elements
that are equal to the extreme, on whichever worker, as torch's does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kadril import ops
from kadril.nn.distribution.layout import Subgrids, without
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Rule
from kadril.nn.distribution.rules.functions.along_dims import (
    Reduction,
    along,
    dims_of,
    is_split_along,
    reduce_over,
    reduced_layout,
    refuse_dtype,
)
from kadril.nn.distribution.rules.functions.pointwise import pointwise
from kadril.nn.distribution.rules.whole_operands import along_whole
from kadril.nn.sharing import interval_here
from kadril.ops.structure import agree
from kadril.partition import Group

__all__ = ["EXTREMES", "make_extreme", "make_first_largest"]

Extreme = Callable[..., torch.Tensor]


def extreme_of(name: str) -> Rule:
    """Return the rule for `max` or `min`: of all elements, along a dim, or of two tensors."""
    over_all = extreme(getattr(torch, f"a{name}"))

    def rule(call: Call) -> Decision:
        if isinstance(call.result, torch.Tensor):
            return pointwise(call) if len(call.operands) == 2 else over_all(call)
        return with_index(call, name)

    return rule


def arg_extreme(name: str) -> Rule:
    """Return the rule for `argmax` or `argmin`."""

    def rule(call: Call) -> Decision:
        if call.argument(1, "dim") is None:
            return along_whole(None)(call)
        return with_index(call, name, only_index=True)

    return rule


def with_index(call: Call, name: str, only_index: bool = False) -> Decision:
    """Decide on the largest or smallest along a dim, with its index: the first of equal ones."""
    (dim,) = dims_of(call)
    if not is_split_along(call, [dim]):
        return along(None)(call)
    operand = call.operand
    layout = call.layout(operand)
    first = call.result if only_index else call.result[0]
    reduction = Reduction(layout, [dim], bool(first.dim() == len(layout)), call.name)
    gives = reduced_layout(layout, [dim], first.dim())
    make = partial(make_with_index, name, only_index, reduction)
    return Decision(
        {operand: layout}, gives if only_index else [gives, gives], make, args=(operand,), kwargs={}
    )


def make_with_index(
    name: str, only_index: bool, reduction: Reduction, subgrids: Subgrids
) -> BlockFunction:
    """Find the extreme of each block, then the extreme of what the workers found."""
    (dim,), what = reduction.dims, reduction.what
    P_x = subgrids.partition(reduction.layout)
    gather = reduction.gatherer(subgrids)
    find: Callable[..., Any] = getattr(torch, name)

    def run(x: torch.Tensor) -> Any:
        if not P_x.active:
            return x.clone()
        start = interval_here(P_x, agree(P_x, x, what).blocks(what), dim).start
        values, indices = find(x, dim, keepdim=True)
        values, indices = gather(values), gather(indices + start)
        values, winners = find(values, dim, keepdim=True)
        indices = reduction.squeezed(indices.gather(dim, winners))
        if only_index:
            return indices
        return getattr(torch.return_types, name)((reduction.squeezed(values), indices))

    return run


def make_first_largest(reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Find the largest over dims; the gradient goes to the first one, as in torch's pools."""
    layout = reduction.layout
    steps: list[BlockFunction] = []
    for dim in reversed(reduction.dims):
        if layout[dim] is None:
            steps.append(partial(torch.max, dim=dim, keepdim=True))
        else:
            one = Reduction(layout, [dim], True, reduction.what)
            steps.append(make_with_index("max", False, one, subgrids))
        layout = without(layout, [dim])

    def run(x: torch.Tensor) -> torch.Tensor:
        if not subgrids.P.active:
            return x.clone()
        for step in steps:
            x = step(x)[0]
        return reduction.squeezed(x)

    return run


def extreme(function: Extreme) -> Rule:
    """Return the rule for the largest or the smallest over dims, without its index."""

    def rule(call: Call) -> Decision:
        refuse_dtype(call)
        return reduce_over(call, dims_of(call), partial(make_extreme, function))

    return rule


def make_extreme(function: Extreme, reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Find the extremes of blocks, then the extreme of what the workers found."""
    dims, what = list(reduction.dims), reduction.what
    gather = reduction.gatherer(subgrids)
    group = reduction.group(subgrids)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        with torch.no_grad():
            found = function(gather(function(x, dim=dims, keepdim=True)), dims, True)
            is_found = x == found
            num_found = is_found.sum(dims, keepdim=True).to(torch.float64)
            num_found = ops.total(num_found, group, what=what)
        y: torch.Tensor = ExtremeFunction.apply(  # type: ignore[no-untyped-call]
            x, found, is_found, num_found, group
        )
        return reduction.squeezed(y)

    return run


class ExtremeFunction(torch.autograd.Function):
    """The extreme over all workers; its gradient is shared by all elements that are equal to it."""

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
        # The gradient is replicated, and each worker uses it for its own block: in a second
        # backward pass, which alone is collective, gradients of it are summed.
        slope = ops.spread(grads[0], ctx.group) if torch.is_grad_enabled() else grads[0]
        return slope * share, None, None, None, None


EXTREMES: dict[str, Rule] = {
    "amax": extreme(torch.amax),
    "amin": extreme(torch.amin),
    "max": extreme_of("max"),
    "min": extreme_of("min"),
    "argmax": arg_extreme("max"),
    "argmin": arg_extreme("min"),
}
