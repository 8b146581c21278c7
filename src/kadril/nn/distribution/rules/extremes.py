"""Rules for the largest and the smallest along a dim that may be split, and their places.

| 3 1 | 7 2 | 7 5 |        each worker: value and global index      (3, 0)  (7, 2)  (7, 4)
                           of what they found, the first of the best           (7, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from kadril.nn.distribution.call import Call, Decision, Rule, Running
from kadril.nn.distribution.layout import Layout, Lines, without
from kadril.nn.distribution.pointwise import pointwise
from kadril.nn.distribution.reduce import along, dims_of, extreme, left_of
from kadril.nn.distribution.replicas import Gatherer
from kadril.nn.distribution.rules.reductions import is_split_along, only_dims, squeezed
from kadril.nn.distribution.rules.whole import along_whole
from kadril.nn.sharing import interval_here
from kadril.ops.structure import agree

__all__ = ["EXTREMES", "make_first_largest"]


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


EXTREMES: dict[str, Rule] = {
    "max": extreme_of("max"),
    "min": extreme_of("min"),
    "argmax": arg_extreme("max"),
    "argmin": arg_extreme("min"),
}
