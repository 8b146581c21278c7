"""Rules for reductions over dims that may be split, besides sums and extremes (`reduce.py`).

Each worker reduces its block, and what they found is put together:

| call | of the blocks | of what the workers found |
|---|---|---|
| `norm`, `prod`, `any`, `all` | the same reduction | gathered, and the same again |
| `max(dim)`, `argmax` and their like | value and global index | gathered; the first of the best |
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

from kadril import ops
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, axes_of, without
from kadril.nn.distribution.pointwise import as_it_is, pointwise
from kadril.nn.distribution.reduce import (
    all_dims,
    along,
    dims_of,
    extreme,
    left_of,
    make_extreme,
)
from kadril.nn.distribution.replicas import Gatherer
from kadril.nn.distribution.rules.whole import along_whole
from kadril.nn.loss.layer import wide
from kadril.nn.loss.log_softmax import log_softmax
from kadril.nn.sharing import interval_here
from kadril.ops.structure import agree
from kadril.partition import Group

__all__ = ["REDUCTIONS", "make_first_largest", "norm"]

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


def norm(call: Call) -> Decision:
    """`x.norm`, `torch.norm` and `torch.linalg.vector_norm`, over some dims or all.

    Raises:
        Refused: a norm of matrices.
    """
    name = getattr(call.node.target, "__name__", str(call.node.target))
    is_linear_algebra = "linalg" in name
    order = call.argument(1, "ord" if is_linear_algebra else "p", 2)
    order = 2.0 if order in (None, "fro") else order
    if call.node.kwargs.get("dtype") is not None or not isinstance(order, (int, float)):
        raise Refused(f"of the order {order!r}, or with another dtype, it is not known")
    dims = dims_of(call, place=2)
    if name == "linalg_norm" and len(dims) > 1 and call.argument(1, "ord") is not None:
        raise Refused("a norm of matrices; use torch.linalg.vector_norm, or give it one dim")
    if math.isinf(order):
        return reduction_of(call, dims, partial(make_largest, order > 0))
    return reduction_of(call, dims, partial(make_twice, partial(vector_norm, order)))


def vector_norm(order: float, x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """(sum |x|^p)^(1/p) over dims; norms of norms are norms."""
    result: torch.Tensor = torch.linalg.vector_norm(x, order, list(dims), keepdim)
    return result


def make_largest(
    is_largest: bool,
    layout: Layout,
    dims: Sequence[int],
    keepdim: bool,
    what: str,
    lines: Lines,
) -> Running:
    """The largest, or smallest, absolute value."""
    function = torch.amax if is_largest else torch.amin
    run = make_extreme(function, layout, dims, keepdim, what, lines)
    return lambda x: run(x.abs())


def normalize(call: Call) -> Decision:
    """`F.normalize`: divided by the norm along a dim."""
    operand = call.operand
    layout = call.layout(operand)
    order, dim = call.argument(1, "p", 2.0), call.argument(2, "dim", 1)
    dims = all_dims(dim, len(layout))
    if not is_split_along(call, dims):
        return as_it_is(call, {operand: layout}, layout)
    if math.isinf(order):
        raise Refused("by the largest absolute value, along a dim that is split")
    eps = call.argument(3, "eps", 1e-12)
    make = partial(make_normalize, order, eps, layout, dims, call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def make_normalize(
    order: float, eps: float, layout: Layout, dims: Sequence[int], what: str, lines: Lines
) -> Running:
    """Find the norm over all workers, which then divide by it."""
    group = group_along(layout, dims, lines)
    find = make_twice(partial(vector_norm, order), layout, dims, True, what, lines)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        return x / ops.spread(find(x), group, what=what).clamp_min(eps)

    return run


# ---- the largest and the smallest, with their places ---------------------------------------------


def extreme_of(name: str) -> Rule:
    """The rule for `max` or `min`: of all elements, along a dim, or of two tensors."""
    whole = extreme(getattr(torch, f"a{name}"))

    def rule(call: Call) -> Decision:
        if isinstance(call.result, torch.Tensor):
            return pointwise(call) if len(call.operands) == 2 else whole(call)
        return picked(call, name)

    return rule


def arg_extreme(name: str) -> Rule:
    """The rule for `argmax` or `argmin`."""

    def rule(call: Call) -> Decision:
        if call.argument(1, "dim") is None:
            return along_whole(None)(call)
        return picked(call, name, only_index=True)

    return rule


def picked(call: Call, name: str, only_index: bool = False) -> Decision:
    """The largest or smallest along a dim, with its index: the first one where there are many."""
    (dim,) = dims_of(call)
    if not is_split_along(call, [dim]):
        return along(None)(call)
    operand = call.operand
    layout = call.layout(operand)
    first = call.result if only_index else call.result[0]
    keepdim = bool(first.dim() == len(layout))
    gives = left_of(layout, [dim], first.dim())
    make = partial(make_picked, layout, dim, keepdim, name, only_index, call.name)
    return Decision(
        {operand: layout}, gives if only_index else [gives, gives], make, args=(operand,), kwargs={}
    )


def make_picked(
    layout: Layout, dim: int, keepdim: bool, name: str, only_index: bool, what: str, lines: Lines
) -> Running:
    """Pick from blocks, then from what the workers picked."""
    P_x = lines.partition(layout)
    gather = Gatherer(lines.partition(only_dims(layout, [dim])), what)
    pick: Callable[..., Any] = getattr(torch, name)

    def run(x: torch.Tensor) -> Any:
        if not P_x.active:
            return x.clone()
        start = interval_here(P_x, agree(P_x, x, what).blocks(what), dim).start
        values, indices = pick(x, dim, keepdim=True)
        values, indices = gather(values), gather(indices + start)
        values, winners = pick(values, dim, keepdim=True)
        indices = indices.gather(dim, winners)
        if not keepdim:
            values, indices = values.squeeze(dim), indices.squeeze(dim)
        if only_index:
            return indices
        return getattr(torch.return_types, name)((values, indices))

    return run


def make_first_largest(
    layout: Layout, dims: Sequence[int], keepdim: bool, what: str, lines: Lines
) -> Running:
    """The largest over dims; the gradient goes to the first one, as that of torch's pools does."""
    steps: list[Running] = []
    for dim in reversed(dims):
        if layout[dim] is None:
            steps.append(partial(torch.max, dim=dim, keepdim=True))
        else:
            steps.append(make_picked(layout, dim, True, "max", False, what, lines))
        layout = without(layout, [dim])

    def run(x: torch.Tensor) -> torch.Tensor:
        if not lines.P.active:
            return x.clone()
        for step in steps:
            x = step(x)[0]
        return x if keepdim else squeezed(x, dims)

    return run


# ---- variance, softmax, running sums -------------------------------------------------------------


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
    """The rule for `softmax`, `log_softmax` and `softmin`."""
    whole = along(None)

    def rule(call: Call) -> Decision:
        given = call.argument(1, "dim")
        dims = dims_of(call)
        changes_dtype = call.node.kwargs.get("dtype") is not None
        if given is None or len(dims) != 1 or changes_dtype or not is_split_along(call, dims):
            return whole(call)
        operand = call.operand
        layout = call.layout(operand)
        make = partial(make_softmax, name, layout, dims[0], call.name)
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
        return along(None)(call)
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
    "max": extreme_of("max"),
    "min": extreme_of("min"),
    "argmax": arg_extreme("max"),
    "argmin": arg_extreme("min"),
    "any": reduced_twice(lambda x, dims, keepdim: torch.any(x, tuple(dims), keepdim)),
    "all": reduced_twice(lambda x, dims, keepdim: torch.all(x, tuple(dims), keepdim)),
    "prod": reduced_twice(product),
    "norm": norm,
    "var std": variance,
    "softmax": softmax("softmax"),
    "log_softmax": softmax("log_softmax"),
    "softmin": softmax("softmin"),
    "logsumexp": logsumexp,
    "normalize": normalize,
    "cumsum": cumsum,
    "cumprod": along(None),
    "sort argsort msort mode": along_whole(-1),
    "topk kthvalue": along_whole(-1, place=2),
    "quantile nanquantile": along_whole(None, place=2),
    "median nanmedian cummax cummin logcumsumexp nansum nanmean": along_whole(None),
    "count_nonzero aminmax std_mean var_mean": along_whole(None),
}
