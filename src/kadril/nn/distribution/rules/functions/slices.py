"""Rules for calls that take a part of a tensor, or put something around it: `x[...]` and `F.pad`.

    x            | 0 1 2 3 | 4 5 6 7 |
    x[1:6]         [ 1 2 3 | 4 5 ]                 blocks of the result are balanced again
    pad(x, 2, 1)   [ . . 0 1 2 | 3 4 5 6 7 . ]

Both are an interval of each dim that may begin before it and end after it. Every worker gets its
block of that in one exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from kadril.nn.distribution.layout import Layout, Subgrids, without
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused
from kadril.nn.distribution.rules.functions.index_select import choose, is_choice
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.ops.halo import HaloExchanger
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["Bounds", "Window", "chunks", "getitem", "make_pad", "pad"]


class Bounds(NamedTuple):
    """The part of a dim that is taken, or what is put around it.

    Attributes:
        start: first element; as in a slice, unless it is padding.
        stop: the one after the last.
        is_padding: whether they count what is added at both ends.
    """

    start: int | None = None
    stop: int | None = None
    is_padding: bool = False

    def interval(self, size: int) -> Interval:
        """Return the interval, in the coordinates of a dim of some size."""
        if self.is_padding:
            return Interval(-(self.start or 0), size + (self.stop or 0))
        start, stop, _ = slice(self.start, self.stop).indices(size)
        return Interval(start, max(start, stop))

    def needed(self, blocks: Sequence[Interval]) -> list[Interval]:
        """Return the interval that each position along the axis needs."""
        interval = self.interval(blocks[-1].stop)
        parts = balanced_intervals(interval.size, len(blocks))
        return [part.shifted(interval.start) for part in parts]


class Window:
    """Intervals of the dims of a tensor; those that change from call to call are remembered.

    Args:
        P_x: one axis for each dim.
        what: name of the call in errors.
    """

    def __init__(self, P_x: Partition, what: str) -> None:
        self.P_x = P_x
        self.what = what
        self._exchangers: dict[Any, HaloExchanger] = {}

    def __call__(
        self, x: torch.Tensor, bounds: Sequence[Bounds], mode: str = "constant", fill: float = 0.0
    ) -> torch.Tensor:
        """Return this worker's block of the result; collective over the partition."""
        if not self.P_x.active:
            return x.clone()
        if all(each == Bounds(0, 0, True) for each in bounds):
            return x
        key = (tuple(bounds), mode, fill)
        if key not in self._exchangers:
            self._exchangers[key] = HaloExchanger(
                self.P_x,
                [each.needed for each in bounds],
                edges="zeros" if mode == "constant" else mode,
                fill=fill,
                what=self.what,
            )
        return self._exchangers[key](x)


def pad(call: Call) -> Decision:
    """Decide on `F.pad`, in any mode."""
    operand = call.operand
    layout = call.layout(operand)
    widths = call.argument(1, "pad")
    touched = range(len(layout) - len(widths) // 2, len(layout))
    fitting = call.fitting(layout, call.result.shape)
    if all(fitting[dim] is None for dim in touched):
        return as_it_is(call, {operand: fitting}, fitting)
    return Decision({operand: fitting}, fitting, partial(make_pad, fitting, call.name))


def make_pad(layout: Layout, what: str, subgrids: Subgrids) -> BlockFunction:
    """Pad blocks."""
    window = Window(subgrids.partition(layout), what)

    def run(
        x: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
    ) -> torch.Tensor:
        pairs = [Bounds(pad[i], pad[i + 1], True) for i in range(0, len(pad), 2)]
        rest = [Bounds(0, 0, True)] * (x.dim() - len(pairs))
        return window(x, [*rest, *reversed(pairs)], mode, value or 0.0)

    return run


def getitem(call: Call) -> Decision:
    """Decide on indexing: of tensors by slices and numbers, of anything else as it is."""
    source = call.node.args[0]
    if not isinstance(source, fx.Node) or not call.is_tensor(source):
        index: Any = call.example_of(call.node.args[1])
        layouts = call.layouts[source] if isinstance(source, fx.Node) else None
        return as_it_is(call, {}, layouts[index] if layouts is not None else None)
    given = call.example_of(call.node.args[1])
    entries = list(given) if isinstance(given, tuple) else [given]
    if any(is_choice(entry) for entry in entries):
        return choose(call, source, entries)
    layout = call.layout(source)
    index = full_index(given, len(layout))
    want, gives = layouts_of_index(call, index, layout, call.shape(source))
    if want == without(layout, range(len(layout))) or is_local(index, want):
        return as_it_is(call, {source: want}, gives)
    return Decision({source: want}, gives, partial(make_getitem, want, call.name))


def full_index(index: Any, num_dims: int) -> list[Any]:
    """Return an index with one entry for each dim, besides those that add a dim.

    Raises:
        Refused: it has others than slices, whole numbers and None.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    for entry in entries:
        is_known = entry is None or entry is Ellipsis or isinstance(entry, (int, slice))
        if not is_known or isinstance(entry, bool):
            raise Refused(f"indexing by {type(entry).__name__}")
    num_missing = num_dims - sum(entry is not None and entry is not Ellipsis for entry in entries)
    if Ellipsis not in entries:
        entries.append(Ellipsis)
    place = entries.index(Ellipsis)
    return [*entries[:place], *[slice(None)] * num_missing, *entries[place + 1 :]]


def is_local(index: Sequence[Any], layout: Layout) -> bool:
    """Whether every worker can index its own block."""
    dims = [entry for entry in index if entry is not None]
    return all(
        axis is None or entry == slice(None) for entry, axis in zip(dims, layout, strict=True)
    )


def layouts_of_index(
    call: Call, index: Sequence[Any], layout: Layout, sizes: Sequence[int]
) -> tuple[Layout, Layout]:
    """Return the layout in which the operand is needed, and that of the result."""
    wants: list[int | None] = []
    gives: list[int | None] = []
    for entry in index:
        if entry is None:
            gives.append(None)
            continue
        axis = layout[len(wants)]
        if isinstance(entry, int):
            wants.append(None)
            continue
        start, stop, step = entry.indices(sizes[len(wants)])
        if axis is not None and (step != 1 or stop - start < call.lengths[axis]):
            axis = None
        wants.append(axis)
        gives.append(axis)
    return tuple(wants), tuple(gives)


def make_getitem(layout: Layout, what: str, subgrids: Subgrids) -> BlockFunction:
    """Index blocks: split dims by an exchange, the others in place."""
    window = Window(subgrids.partition(layout), what)

    def run(x: torch.Tensor, index: Any) -> torch.Tensor:
        entries = full_index(index, len(layout))
        dims = [entry for entry in entries if entry is not None]
        bounds = [
            Bounds() if axis is None else Bounds(entry.start, entry.stop)
            for entry, axis in zip(dims, layout, strict=True)
        ]
        y = window(x, bounds)
        axes = iter(layout)
        local = [entry if entry is None or next(axes) is None else slice(None) for entry in entries]
        return y[tuple(local)]

    return run


def chunks(call: Call) -> Decision:
    """Decide on `chunk` and `split`, along a dim that has to be whole."""
    layout = call.layout(call.operand)
    dim = call.argument(2, "dim", 0) % len(layout)
    want = without(layout, [dim])
    return as_it_is(call, {call.operand: want}, [want] * len(call.result))
