"""Rules for reductions over dims that may be split, besides sums and extremes (`reduce.py`).

Each worker reduces its block, and what they found is put together:

| call | of the blocks | of what the workers found |
|---|---|---|
| `prod`, `any`, `all`, norms (`norms.py`) | the same reduction | gathered, and the same again |
| `var`, `std` | sum, then squares of deviations | sums |
| `softmax` and its like, `logsumexp` | largest, then sum of exponentials | largest, and sum |
| `cumsum` | running sum | sums of all blocks before are added |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from kadril import ops
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, axes_of
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.reduce import all_dims, dims_of, left_of
from kadril.nn.distribution.replicas import Gatherer
from kadril.nn.distribution.rules.whole import along_whole
from kadril.nn.loss.layer import wide
from kadril.nn.loss.log_softmax import log_softmax
from kadril.ops.structure import agree
from kadril.partition import Group

__all__ = [
    "REDUCTIONS",
    "SOFTMAX_LAYERS",
    "group_along",
    "is_split_along",
    "make_twice",
    "only_dims",
    "reduction_of",
    "squeezed",
]

Reduction = Callable[..., torch.Tensor]


def only_dims(layout: Layout, dims: Sequence[int]) -> Layout:
    """A layout with all dims whole but some."""
    return tuple(axis if dim in dims else None for dim, axis in enumerate(layout))


def is_split_along(call: Call, dims: Sequence[int]) -> bool:
    """Whether any of these dims of the operand is split."""
    return bool(axes_of(only_dims(call.layout(call.operand), dims)))


def group_along(layout: Layout, dims: Sequence[int], lines: Lines) -> Group | None:
    """The workers that have parts of what this one reduces; None on ranks that have none."""
    axes = axes_of(only_dims(layout, dims))
    return lines.group(axes) if lines.P.active else None


def keeps_dims(call: Call) -> bool:
    """Whether a reduction leaves its dims, with one element."""
    return bool(call.result.dim() == len(call.layout(call.operand)))


def reduction_of(call: Call, dims: Sequence[int], make: Callable[..., Running]) -> Decision:
    """The decision for a reduction to one tensor.

    Args:
        call: the reduction.
        dims: that it reduces.
        make: what runs where they are split, from layout, dims, whether to keep them, a name for
            errors, and the lines.
    """
    operand = call.operand
    layout = call.layout(operand)
    gives = left_of(layout, dims, call.result.dim())
    if not is_split_along(call, dims):
        return as_it_is(call, {operand: layout}, gives)
    made = partial(make, layout, dims, keeps_dims(call), call.name)
    return Decision({operand: layout}, gives, made, args=(operand,), kwargs={})


def reduced_twice(function: Reduction) -> Rule:
    """The rule for reductions whose results can be reduced in the same way, such as products.

    Args:
        function: takes a tensor, dims and `keepdim`.
    """

    def rule(call: Call) -> Decision:
        if call.node.kwargs.get("dtype") is not None:
            raise Refused("it changes the dtype too; do that in a call of its own")
        return reduction_of(call, dims_of(call), partial(make_twice, function))

    return rule


def make_twice(
    function: Reduction,
    layout: Layout,
    dims: Sequence[int],
    keepdim: bool,
    what: str,
    lines: Lines,
) -> Running:
    """Reduce blocks, and then what the workers found."""
    gather = Gatherer(lines.partition(only_dims(layout, dims)), what)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = function(gather(function(x, dims, True)), dims, True)
        return y if keepdim else squeezed(y, dims)

    return run


def squeezed(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """A tensor without some dims of one element."""
    return x.squeeze(tuple(dims)) if dims else x


def product(x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """The product over dims, which are left."""
    for dim in dims:
        x = x.prod(dim, keepdim=True)
    return x


def variance(call: Call) -> Decision:
    """`var` and `std` over some dims or all."""
    name = getattr(call.node.target, "__name__", str(call.node.target))
    args, kwargs = list(call.example_of(call.node.args[1:])), call.example_of(call.node.kwargs)
    correction = kwargs.get("correction", 1)
    if kwargs.get("unbiased") is False or any(each is False for each in args[:2]):
        correction = 0
    dim = args[0] if args and not isinstance(args[0], bool) else kwargs.get("dim")
    dims = all_dims(dim, len(call.layout(call.operand)))
    return reduction_of(call, dims, partial(make_variance, name == "std", correction or 0))


def make_variance(
    is_root: bool,
    correction: float,
    layout: Layout,
    dims: Sequence[int],
    keepdim: bool,
    what: str,
    lines: Lines,
) -> Running:
    """Add up elements for the mean, and then squares of what they are away from it."""
    group = group_along(layout, dims, lines)
    P_x = lines.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        blocks = agree(P_x, x, what).blocks(what)
        num = math.prod(blocks[dim][-1].stop for dim in dims)
        mean = ops.total(x.sum(list(dims), keepdim=True), group, what=what) / num
        away = x - ops.spread(mean, group, what=what)
        squares = ops.total(away.square().sum(list(dims), keepdim=keepdim), group, what=what)
        y = squares / max(0.0, num - correction)
        # As torch: where nothing varies, the gradient of the root is 0.
        return torch.where(y == 0, y, torch.where(y == 0, 1.0, y).sqrt()) if is_root else y

    return run


def softmax(name: str) -> Rule:
    """The rule for `softmax`, `log_softmax` and `softmin`, as functions and as modules."""
    whole = along_whole(None)

    def rule(call: Call) -> Decision:
        module: Any = call.module
        # Softmax2d has no dim: it is for channels.
        given = call.argument(1, "dim") if module is None else getattr(module, "dim", -3)
        if given is None:
            raise Refused("it does not say along which dim; give it `dim`")
        operand = call.operand
        layout = call.layout(operand)
        dim = given % len(layout)
        if layout[dim] is None and module is not None:
            return Decision({operand: layout}, layout, lambda lines: module)
        if layout[dim] is None or call.node.kwargs.get("dtype") is not None:
            return whole(call)
        make = partial(make_softmax, name, layout, dim, call.name)
        return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})

    return rule


def make_softmax(name: str, layout: Layout, dim: int, what: str, lines: Lines) -> Running:
    """By the partitioned log-softmax."""
    group = group_along(layout, [dim], lines)
    P_x = lines.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        requires_grad = agree(P_x, x, what).requires_grad
        wider = wide(-x if name == "softmin" else x)
        y = log_softmax(wider, dim, group, requires_grad=requires_grad, what=what)
        return (y if name == "log_softmax" else y.exp()).to(x.dtype)

    return run


def logsumexp(call: Call) -> Decision:
    """The logarithm of a sum of exponentials over dims."""
    return reduction_of(call, dims_of(call), make_logsumexp)


def make_logsumexp(
    layout: Layout, dims: Sequence[int], keepdim: bool, what: str, lines: Lines
) -> Running:
    """Find the largest, and add up the exponentials of what elements are below it."""
    group = group_along(layout, dims, lines)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        largest = wide(x.detach()).amax(list(dims), keepdim=True)
        group.transport.allreduce(largest, "max", name=f"{what}: largest")
        largest = torch.where(largest.isfinite(), largest, 0.0)
        sums = ops.total((wide(x) - largest).exp().sum(list(dims), keepdim=True), group, what=what)
        y = (largest + sums.log()).to(x.dtype)
        return y if keepdim else squeezed(y, dims)

    return run


def cumsum(call: Call) -> Decision:
    """A running sum along a dim."""
    (dim,) = dims_of(call)
    if call.node.kwargs.get("dtype") is not None or not is_split_along(call, [dim]):
        return along_whole(None)(call)
    operand = call.operand
    layout = call.layout(operand)
    make = partial(make_cumsum, layout, dim, call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def make_cumsum(layout: Layout, dim: int, what: str, lines: Lines) -> Running:
    """Add the sums of all blocks before to the running sum of this one."""
    P_line = lines.partition(only_dims(layout, [dim]))
    gather = Gatherer(P_line, what)
    group = group_along(layout, [dim], lines)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None or P_line.index is None:
            return x.clone()
        sums = ops.spread(gather(x.sum(dim, keepdim=True)), group, what=what)
        before = sums.narrow(dim, 0, P_line.index[dim]).sum(dim, keepdim=True)
        return x.cumsum(dim) + before

    return run


REDUCTIONS: dict[str, Rule] = {
    "any": reduced_twice(lambda x, dims, keepdim: torch.any(x, tuple(dims), keepdim)),
    "all": reduced_twice(lambda x, dims, keepdim: torch.all(x, tuple(dims), keepdim)),
    "prod": reduced_twice(product),
    "var std": variance,
    "softmax": softmax("softmax"),
    "log_softmax": softmax("log_softmax"),
    "softmin": softmax("softmin"),
    "logsumexp": logsumexp,
    "cumsum": cumsum,
    "sort argsort mode": along_whole(-1),
    "msort": along_whole(0),
    "topk kthvalue": along_whole(-1, place=2),
    "quantile nanquantile": along_whole(None, place=2),
    "median nanmedian cumprod cummax cummin logcumsumexp nansum nanmean": along_whole(None),
    "count_nonzero aminmax std_mean var_mean": along_whole(None),
}

SOFTMAX_LAYERS: dict[type[nn.Module], Rule] = {
    nn.Softmax: softmax("softmax"),
    nn.Softmax2d: softmax("softmax"),
    nn.LogSoftmax: softmax("log_softmax"),
    nn.Softmin: softmax("softmin"),
}
