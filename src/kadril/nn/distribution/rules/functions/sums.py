"""Rules for sums and means over dims.

A sum over dims that are split is the sum of what the workers have, and a replicated value:

    y = sum_r sum(x_r)         x*_r = y*  on each element            (`ops.total`)
"""

from __future__ import annotations

import math
from functools import partial

import torch

from kadril import ops
from kadril.nn.distribution.layout import Subgrids
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Rule
from kadril.nn.distribution.rules.functions.along_dims import (
    Reduction,
    dims_of,
    reduce_over,
    refuse_dtype,
)
from kadril.ops.structure import agree

__all__ = ["SUMS", "make_sum"]


def summed(call: Call) -> Decision:
    """Decide on `sum`."""
    refuse_dtype(call)
    return reduce_over(call, dims_of(call), partial(make_sum, is_mean=False))


def mean(call: Call) -> Decision:
    """Decide on `mean`."""
    refuse_dtype(call)
    sizes, dims = call.shape(call.operand), dims_of(call)
    num_elements = math.prod(sizes[dim] for dim in dims)
    return reduce_over(call, dims, partial(make_sum, is_mean=True, num_elements=num_elements))


def make_sum(
    reduction: Reduction, subgrids: Subgrids, *, is_mean: bool, num_elements: int | None = None
) -> BlockFunction:
    """Sum blocks, then over the workers.

    Args:
        reduction: over which dims.
        subgrids: of the partition.
        is_mean: whether to divide by the number of elements.
        num_elements: that number; where None, workers agree on it in each call (for layers, which
            take any size).
    """
    layout, dims, keepdim, what = reduction
    group = reduction.group(subgrids)
    P_x = subgrids.partition(layout)

    def run(x: torch.Tensor) -> torch.Tensor:
        if group is None:
            return x.clone()
        y = ops.total(x.sum(dim=list(dims), keepdim=keepdim), group, what=what)
        if not is_mean:
            return y
        if num_elements is not None:
            return y / num_elements
        blocks = agree(P_x, x, what).blocks(what)
        return y / math.prod(blocks[dim][-1].stop for dim in dims)

    return run


SUMS: dict[str, Rule] = {"sum": summed, "mean": mean}
