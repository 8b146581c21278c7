"""Rules for calls that arrange dims anew: flatten, view, reshape, squeeze, permute, ...

A dim that is kept as it is may stay split; dims that are merged, or taken apart, have to be whole.

    (8, 16, 5, 5) -> (8, 400)        8 is kept;  16, 5, 5 become 400: gathered first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from kadril.nn.distribution.layout import Layout, Subgrids, axes_of, block_shape
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused
from kadril.nn.distribution.rules.functions.pointwise import as_it_is, runner

__all__ = ["expand", "group_dims", "permute", "reshape"]

# Sizes that tell dims apart.
DISTINCT = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class DimGroup(NamedTuple):
    """Group of dims that become others: the smallest such group.

    Attributes:
        before: dims of the operand.
        after: dims of the result.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


def group_dims(before: Sequence[int], after: Sequence[int]) -> list[DimGroup]:
    """Group the dims of two shapes by which become which, in row-major order."""
    num_first = 0
    while num_first < min(len(before), len(after)) and before[num_first] == after[num_first]:
        num_first += 1
    num_last = 0
    rest = min(len(before), len(after)) - num_first
    while num_last < rest and before[-1 - num_last] == after[-1 - num_last]:
        num_last += 1
    groups = [DimGroup((dim,), (dim,)) for dim in range(num_first)]
    middle = range(num_first, len(before) - num_last), range(num_first, len(after) - num_last)
    groups += group_middle(before, after, *middle)
    groups += [
        DimGroup((len(before) - each,), (len(after) - each,)) for each in range(num_last, 0, -1)
    ]
    return groups


def group_middle(
    before: Sequence[int], after: Sequence[int], dims_before: range, dims_after: range
) -> list[DimGroup]:
    """Group the dims between those that both shapes begin and end with."""
    ones = [DimGroup((dim,), ()) for dim in dims_before if before[dim] == 1]
    ones += [DimGroup((), (dim,)) for dim in dims_after if after[dim] == 1]
    sources = [dim for dim in dims_before if before[dim] != 1]
    targets = [dim for dim in dims_after if after[dim] != 1]
    groups = []
    while sources and targets:
        old, new = [sources.pop(0)], [targets.pop(0)]
        while (num_old := math.prod(before[dim] for dim in old)) != (
            num_new := math.prod(after[dim] for dim in new)
        ):
            if num_old < num_new:
                old.append(sources.pop(0))
            else:
                new.append(targets.pop(0))
        groups.append(DimGroup(tuple(old), tuple(new)))
    return ones + groups


def reshape(call: Call) -> Decision:
    """Decide on `reshape` and its like: dims that are kept may stay split."""
    operand = call.operand
    if any(isinstance(each, torch.dtype) for each in call.node.args):
        raise Refused("a view of another dtype")
    before, after = call.shape(operand), tuple(call.result.shape)
    if 0 in before:
        raise Refused("it has no elements on the example")
    groups = group_dims(before, after)
    layout = call.layout(operand)
    wants: list[int | None] = [None] * len(before)
    gives: list[int | None] = [None] * len(after)
    for old, new in groups:
        if len(old) == len(new) == 1:
            wants[old[0]] = gives[new[0]] = layout[old[0]]
    make = partial(make_shaped, torch.Tensor.reshape, tuple(gives), after)
    return Decision({operand: tuple(wants)}, tuple(gives), make, args=(operand,), kwargs={})


def make_shaped(
    function: Callable[..., torch.Tensor],
    layout: Layout,
    sizes: Sequence[int],
    subgrids: Subgrids,
) -> BlockFunction:
    """Bring blocks to the shape that blocks of the result have.

    Args:
        function: `reshape` or `expand`, of a tensor and a shape.
        layout: of the result.
        sizes: global shape of the result.
        subgrids: of the partition.
    """
    if not subgrids.P.active:
        return lambda x: x.clone()
    shape = block_shape(layout, sizes, subgrids.P)
    return lambda x: function(x, shape)


def expand(call: Call) -> Decision:
    """Decide on `x.expand(...)`: dims that are there stay as they are split.

    New ones are split as they are in the last tensor of the same shape, so that nothing has to be
    cut: all workers along the axis use `x` for their part.
    """
    operand, sizes = call.operand, tuple(call.result.shape)
    own, layout = call.shape(operand), call.layout(operand)
    num_new = len(sizes) - len(own)
    gives: list[int | None] = []
    for dim, axis in enumerate(call.layout_like(sizes)):
        is_kept = dim >= num_new and own[dim - num_new] == sizes[dim]
        is_free = axis not in axes_of(layout)
        gives.append(layout[dim - num_new] if is_kept else axis if is_free else None)
    return Decision(
        {operand: layout},
        tuple(gives),
        partial(make_shaped, torch.Tensor.expand, tuple(gives), sizes),
        args=(operand,),
        kwargs={},
        splits=axes_of(tuple(gives)),
    )


def permute(call: Call) -> Decision:
    """Decide on `permute` and its like: the same dims in another order."""
    operand = call.operand
    num_dims = len(call.shape(operand))
    probe = torch.empty(DISTINCT[:num_dims], device="meta")
    args = [probe if each is operand else each for each in call.node.args]
    # What the call makes of dims that can be told apart.
    result: torch.Tensor = runner(call.node)(
        *call.example_of(tuple(args)), **call.example_of(call.node.kwargs)
    )
    layout = call.layout(operand)
    gives: Layout = tuple(layout[DISTINCT.index(size)] for size in result.shape)
    return as_it_is(call, {operand: layout}, gives)
