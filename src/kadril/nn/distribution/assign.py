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

from kadril.nn.distribution.call import Call, Decision, Refused, Running
from kadril.nn.distribution.layout import Layout, Lines, without
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.window import full_index
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
        is_one: whether the index takes one place, so that the value has not the dim.
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

    def here(self, lines: Lines) -> tuple[slice, slice]:
        """The part to write, in the coordinates of this worker's block, and that of the value."""
        if not self.is_partial or self.axis is None or lines.P.index is None:
            return (slice(None) if self.is_all else self.entry), slice(None)
        blocks = balanced_intervals(self.size, lines.P.shape[self.axis])
        mine = blocks[lines.P.index[self.axis]]
        start = max(mine.start, self.interval.start)
        stop = min(mine.stop, self.interval.stop)
        if start >= stop:
            # The value is used all the same: its gradient is summed over all workers.
            return slice(0, 0), slice(0, 0)
        first = self.interval.start
        return slice(start - mine.start, stop - mine.start), slice(start - first, stop - first)


def setitem(call: Call) -> Decision:
    """Assignment to a part of a tensor."""
    target, index, value = call.node.args
    if not isinstance(target, fx.Node):
        raise Refused("what is assigned to is no tensor")
    layout, sizes = call.layout(target), call.shape(target)
    if isinstance(index, fx.Node) and call.shape(index) == sizes:
        return masked(call, target, index, value)
    given = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(isinstance(each, fx.Node) or each is None for each in given):
        raise Refused("a tensor is assigned to by an index that is a tensor, or None")
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
    """Assignment where a mask says so."""
    layout = call.layout(target)
    wants = {target: layout, mask: layout}
    if isinstance(value, fx.Node):
        if call.shape(value):
            raise Refused("tensors are assigned by a mask; only one number can be")
        wants[value] = ()
    return as_it_is(call, wants, layout)


def layout_of_value(sizes: Sequence[int], dims: Sequence[Dim]) -> Layout:
    """The layout in which a value is needed; what is broadcast is whole."""
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


def make_setitem(dims: Sequence[Dim], lines: Lines) -> Running:
    """Write into blocks."""
    places = [dim.here(lines) for dim in dims]
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
