"""Rules for norms of vectors, along dims that may be split: norms of norms are norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from kadril import ops
from kadril.nn.distribution.call import Call, Decision, Refused, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, without
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.reduce import all_dims, dims_of, make_extreme
from kadril.nn.distribution.rules.reductions import (
    group_along,
    is_split_along,
    make_twice,
    reduction_of,
)

__all__ = ["NORMS", "norm"]


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


def over_channels(call: Call) -> Decision:
    """`F.local_response_norm`: as it is, where channels are whole."""
    layout = without(call.layout(call.operand), [1])
    return as_it_is(call, {call.operand: layout}, layout)


NORMS: dict[str, Rule] = {
    "norm": norm,
    "normalize": normalize,
    "local_response_norm": over_channels,
}
