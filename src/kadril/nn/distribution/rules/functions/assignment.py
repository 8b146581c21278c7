"""The rule for `y[index] = value`: every worker writes the part that lies in its block.

    y              | . . . . | . . . . |
    y[1:6] = v     | . 0 1 2 | 3 4 . . |        v is whole along dims of which a part is written

Along dims that are written from end to end, `v` is split as `y` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from kadril.nn.distribution.layout import Layout, Subgrids, without
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.functions.slices import full_index
from kadril.partition import Interval, balanced_intervals

__all__ = ["setitem"]


class Dim:
    """The part of one dim that is written.

    Args:
        entry: of the index: a slice or a whole number.
        size: of the dim.
        axis: that splits it, or None.

    Attributes:
        is_all: whether all of it is written, in order.
        is_one: whether the index takes one place, so that the value does not have the dim.
        num: places that are written.
    """

    def __init__(self, entry: slice | int, size: int, axis: int | None) -> None:
        self.entry = slice(entry % size, entry % size + 1) if isinstance(entry, int) else entry
        self.is_one = isinstance(entry, int)
        self.size = size
        start, stop, step = self.entry.indices(size)
        self.num = len(range(start, stop, step))
        self.is_all = (start, stop, step) == (0, size, 1)
        # With other steps, all of the dim is needed.
        self.axis = axis if step == 1 else None
        self.interval = Interval(start, start + self.num)

    @property
    def is_partial(self) -> bool:
        """Whether workers write different numbers of places."""
        return self.axis is not None and not self.is_all

    def here(self, subgrids: Subgrids) -> tuple[slice, slice]:
        """Return the part of this worker's block that is written, and that of the value."""
        if not self.is_partial or self.axis is None or subgrids.P.index is None:
            return (slice(None) if self.is_all else self.entry), slice(None)
        blocks = balanced_intervals(self.size, subgrids.P.shape[self.axis])
        mine = blocks[subgrids.P.index[self.axis]]
        start = max(mine.start, self.interval.start)
        stop = min(mine.stop, self.interval.stop)
        if start >= stop:
            # The value is used nevertheless: its gradient is summed over all workers.
            return slice(0, 0), slice(0, 0)
        first = self.interval.start
        return slice(start - mine.start, stop - mine.start), slice(start - first, stop - first)


def setitem(call: Call) -> Decision:
    """Decide on the assignment to a part of a tensor."""
    target, index, value = call.node.args
    if not isinstance(target, fx.Node):
        raise Refused("the target of the assignment is not a tensor")
    layout, sizes = call.layout(target), call.shape(target)
    if isinstance(index, fx.Node) and call.shape(index) == sizes:
        return masked(call, target, index, value)
    given = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(isinstance(each, fx.Node) or each is None for each in given):
        raise Refused("the index of the assignment is a tensor, or has None")
    entries = full_index(tuple(given), len(layout))
    dims = [Dim(*each) for each in zip(entries, sizes, layout, strict=True)]
    want = tuple(dim.axis for dim in dims)
    wants = {target: want}
    if isinstance(value, fx.Node):
        wants[value] = layout_of_value(call.shape(value), dims)
    if not any(dim.is_partial for dim in dims):
        return as_it_is(call, wants, want)
    return Decision(wants, want, partial(make_setitem, dims))


def masked(call: Call, target: fx.Node, mask: fx.Node, value: Any) -> Decision:
    """Decide on the assignment by a mask."""
    layout = call.layout(target)
    wants = {target: layout, mask: layout}
    if isinstance(value, fx.Node):
        if call.shape(value):
            raise Refused("it assigns several numbers by a mask; only one is supported")
        wants[value] = ()
    return as_it_is(call, wants, layout)


def layout_of_value(sizes: Sequence[int], dims: Sequence[Dim]) -> Layout:
    """Return the layout in which a value is needed; dims that are broadcast are whole."""
    there = [dim for dim in dims if not dim.is_one]
    shift = len(there) - len(sizes)
    layout: Layout = tuple(
        there[place + shift].axis
        if place + shift >= 0 and size == there[place + shift].num
        else None
        for place, size in enumerate(sizes)
    )
    partly = [place for place in range(len(sizes)) if place + shift >= 0]
    partly = [place for place in partly if not there[place + shift].is_all]
    return without(layout, partly)


def make_setitem(dims: Sequence[Dim], subgrids: Subgrids) -> BlockFunction:
    """Write into blocks."""
    places = [dim.here(subgrids) for dim in dims]
    local = tuple(place for place, _ in places)
    taken = tuple(place for _, place in places)
    there = [dim for dim in dims if not dim.is_one]
    ones = [place for place, dim in enumerate(dims) if dim.is_one]

    def run(y: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            have = [size for size, dim in zip(y.shape, dims, strict=True) if not dim.is_one]
            region = [
                size if dim.is_all else dim.num for size, dim in zip(have, there, strict=True)
            ]
            value = value.reshape(value.shape[max(0, value.dim() - len(region)) :]).expand(region)
            for place in ones:
                value = value.unsqueeze(place)
            value = value[taken]
        y[local] = value
        return y

    return run
