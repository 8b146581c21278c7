"""Rules for norms of vectors, along dims that may be split: norms of norms are norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from kadril import ops
from kadril.nn.distribution.layout import Subgrids, without
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.along_dims import (
    Reduction,
    all_dims,
    dims_of,
    is_split_along,
    reduce_over,
)
from kadril.nn.distribution.rules.functions.extremes import make_extreme
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.functions.reductions import make_twice

__all__ = ["NORMS", "norm"]


def norm(call: Call) -> Decision:
    """Decide on `x.norm`, `torch.norm` and `torch.linalg.vector_norm`, over some dims or all.

    Raises:
        Refused: a norm of matrices.
    """
    name = getattr(call.node.target, "__name__", str(call.node.target))
    is_linear_algebra = "linalg" in name
    order = call.argument(1, "ord" if is_linear_algebra else "p", 2)
    order = 2.0 if order in (None, "fro") else order
    if call.node.kwargs.get("dtype") is not None or not isinstance(order, (int, float)):
        raise Refused(f"order {order!r}, or another dtype, is not supported")
    dims = dims_of(call, place=2)
    if name == "linalg_norm" and len(dims) > 1 and call.argument(1, "ord") is not None:
        raise Refused("a norm of matrices; use torch.linalg.vector_norm, or give it one dim")
    if math.isinf(order):
        return reduce_over(call, dims, partial(make_largest, order > 0))
    return reduce_over(call, dims, partial(make_twice, partial(vector_norm, order)))


def vector_norm(order: float, x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """Return (sum |x|^p)^(1/p) over dims; norms of norms are norms."""
    result: torch.Tensor = torch.linalg.vector_norm(x, order, list(dims), keepdim)
    return result


def make_largest(is_largest: bool, reduction: Reduction, subgrids: Subgrids) -> BlockFunction:
    """Find the largest, or smallest, absolute value."""
    run = make_extreme(torch.amax if is_largest else torch.amin, reduction, subgrids)
    return lambda x: run(x.abs())


def normalize(call: Call) -> Decision:
    """Decide on `F.normalize`: divided by the norm along a dim."""
    operand = call.operand
    layout = call.layout(operand)
    order, dim = call.argument(1, "p", 2.0), call.argument(2, "dim", 1)
    dims = all_dims(dim, len(layout))
    if not is_split_along(call, dims):
        return as_it_is(call, {operand: layout}, layout)
    if math.isinf(order):
        raise Refused("by the largest absolute value, along a dim that is split")
    eps = call.argument(3, "eps", 1e-12)
    reduction = Reduction(layout, dims, True, call.name)
    make = partial(make_normalize, order, eps, reduction)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def make_normalize(
    order: float, eps: float, reduction: Reduction, subgrids: Subgrids
) -> BlockFunction:
    """Find the norm over all workers, and divide by it."""
    group = reduction.group(subgrids)
    find = make_twice(partial(vector_norm, order), reduction, subgrids)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        return x / ops.spread(find(x), group, what=reduction.what).clamp_min(eps)

    return run


def over_channels(call: Call) -> Decision:
    """Decide on `F.local_response_norm`: as it is, where channels are whole."""
    layout = without(call.layout(call.operand), [1])
    return as_it_is(call, {call.operand: layout}, layout)


NORMS: dict[str, Rule] = {
    "norm": norm,
    "normalize": normalize,
    "local_response_norm": over_channels,
}
