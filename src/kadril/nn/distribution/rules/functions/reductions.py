"""Rules for reductions over dims that may be split, besides `sums.py` and `extremes.py`.

Each worker reduces its block, and what they found is put together:

| call | of the blocks | of what the workers found |
|---|---|---|
| `prod`, `any`, `all`, norms | the same reduction | gathered, and the same again |
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
from kadril.nn.distribution.layout import Layout, Subgrids
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.along_dims import (
    Reduction,
    all_dims,
    dims_of,
    is_split_along,
    reduce_over,
    refuse_dtype,
)
from kadril.nn.distribution.rules.whole_operands import along_whole
from kadril.nn.loss.log_softmax import log_softmax
from kadril.nn.loss.loss_layer import wide
from kadril.ops.structure import agree

__all__ = ["REDUCTIONS", "SOFTMAX_LAYERS", "make_twice"]

# Takes a tensor, dims and `keepdim`.
Reducing = Callable[..., torch.Tensor]


def reduced_twice(function: Reducing) -> Rule:
    """Return the rule for reductions whose results can be reduced again, such as products."""

    def rule(call: Call) -> Decision:
        refuse_dtype(call)
        return reduce_over(call, dims_of(call), partial(make_twice, function))

    return rule


def make_twice(function: Reducing, reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Reduce blocks, and then what the workers found."""
    gather = reduction.gatherer(subgrids)

    def run(x: torch.Tensor) -> torch.Tensor:
        found = gather(function(x, reduction.dims, True))
        return reduction.squeezed(function(found, reduction.dims, True))

    return run


def product(x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """Multiply over dims, which stay."""
    for dim in dims:
        x = x.prod(dim, keepdim=True)
    return x


def variance(call: Call) -> Decision:
    """Decide on `var` and `std` over some dims or all."""
    name = getattr(call.node.target, "__name__", str(call.node.target))
    args, kwargs = list(call.example_of(call.node.args[1:])), call.example_of(call.node.kwargs)
    correction = kwargs.get("correction", 1)
    if kwargs.get("unbiased") is False or any(each is False for each in args[:2]):
        correction = 0
    dim = args[0] if args and not isinstance(args[0], bool) else kwargs.get("dim")
    dims = all_dims(dim, len(call.layout(call.operand)))
    return reduce_over(call, dims, partial(make_variance, name == "std", correction or 0))


def make_variance(
    is_root: bool, correction: float, reduction: Reduction, subgrids: Subgrids
) -> BlockFunction:
    """Sum elements for the mean, and then squares of their distances to it."""
    dims, what = list(reduction.dims), reduction.what
    group = reduction.group(subgrids)
    P_x = subgrids.partition(reduction.layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        blocks = agree(P_x, x, what).blocks(what)
        num_elements = math.prod(blocks[dim][-1].stop for dim in dims)
        mean = ops.total(x.sum(dims, keepdim=True), group, what=what) / num_elements
        away = x - ops.spread(mean, group, what=what)
        squares = away.square().sum(dims, keepdim=reduction.keepdim)
        y = ops.total(squares, group, what=what) / max(0.0, num_elements - correction)
        # As torch: where nothing varies, the gradient of the root is 0.
        return torch.where(y == 0, y, torch.where(y == 0, 1.0, y).sqrt()) if is_root else y

    return run


def softmax(name: str) -> Rule:
    """Return the rule for `softmax`, `log_softmax` or `softmin`, as functions and as modules."""
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
            return Decision({operand: layout}, layout, lambda subgrids: module)
        if layout[dim] is None or call.node.kwargs.get("dtype") is not None:
            return whole(call)
        make = partial(make_softmax, name, layout, dim, call.name)
        return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})

    return rule


def make_softmax(
    name: str, layout: Layout, dim: int, what: str, subgrids: Subgrids
) -> BlockFunction:
    """Use the partitioned log-softmax."""
    group = Reduction(layout, [dim], True, what).group(subgrids)
    P_x = subgrids.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        requires_grad = agree(P_x, x, what).requires_grad
        wider = wide(-x if name == "softmin" else x)
        y = log_softmax(wider, dim, group, requires_grad=requires_grad, what=what)
        return (y if name == "log_softmax" else y.exp()).to(x.dtype)

    return run


def logsumexp(call: Call) -> Decision:
    """Decide on the logarithm of a sum of exponentials over dims."""
    return reduce_over(call, dims_of(call), make_logsumexp)


def make_logsumexp(reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Find the largest, and sum the exponentials of distances to it."""
    dims, what = list(reduction.dims), reduction.what
    group = reduction.group(subgrids)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        largest = wide(x.detach()).amax(dims, keepdim=True)
        group.transport.allreduce(largest, "max", name=f"{what}: largest")
        largest = torch.where(largest.isfinite(), largest, 0.0)
        sums = ops.total((wide(x) - largest).exp().sum(dims, keepdim=True), group, what=what)
        return reduction.squeezed((largest + sums.log()).to(x.dtype))

    return run


def cumsum(call: Call) -> Decision:
    """Decide on a running sum along a dim."""
    (dim,) = dims_of(call)
    if call.node.kwargs.get("dtype") is not None or not is_split_along(call, [dim]):
        return along_whole(None)(call)
    operand = call.operand
    layout = call.layout(operand)
    make = partial(make_cumsum, Reduction(layout, [dim], True, call.name))
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def make_cumsum(reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Add the sums of all blocks before this one to its own running sum."""
    (dim,), what = reduction.dims, reduction.what
    gather = reduction.gatherer(subgrids)
    group = reduction.group(subgrids)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None or gather.P.index is None:
            return x.clone()
        sums = ops.spread(gather(x.sum(dim, keepdim=True)), group, what=what)
        before = sums.narrow(dim, 0, gather.P.index[dim]).sum(dim, keepdim=True)
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
