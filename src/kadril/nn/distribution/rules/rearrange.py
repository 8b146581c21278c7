"""Rules for calls that move elements: `flip`, `roll`, `repeat`, `repeat_interleave`, pixel shuffle.

    flip        | 0 1 2 | 3 4 5 |  ->  | 5 4 3 | 2 1 0 |        each worker gets what it will have,
    roll by 1   | 0 1 2 | 3 4 5 |  ->  | 5 0 1 | 2 3 4 |        in one exchange

Where a dim becomes longer or shorter by a factor, workers do that with their own blocks. As the
blocks of a result are balanced, elements are exchanged then, where sizes do not divide evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kadril.nn.distribution.call import Call, Decision, Refused, Running
from kadril.nn.distribution.layout import Layout, Lines, without
from kadril.nn.distribution.pointwise import as_it_is
from kadril.nn.distribution.replicas import Cutter
from kadril.nn.distribution.window import Bounds, Window
from kadril.ops.halo import HaloExchanger, Needed
from kadril.partition import Interval, balanced_intervals

__all__ = [
    "channel_shuffle",
    "flip",
    "pixel_shuffle",
    "pixel_unshuffle",
    "repeat",
    "repeat_interleave",
    "roll",
]


def numbers(value: Any) -> list[int]:
    """One number, or several, as a list."""
    return [value] if isinstance(value, int) else list(value)


def flip(call: Call) -> Decision:
    """`torch.flip`, `fliplr` and `flipud`: dims in reverse."""
    operand = call.operand
    layout = call.layout(operand)
    name = getattr(call.node.target, "__name__", str(call.node.target))
    fixed = {"fliplr": [1], "flipud": [0]}.get(name)
    # As a method, the dims may follow one by one.
    given = call.example_of(call.node.args[1:])
    dims = fixed or numbers(call.node.kwargs.get("dims") or (given if len(given) > 1 else given[0]))
    dims = [dim % len(layout) for dim in dims]
    if all(layout[dim] is None for dim in dims):
        return as_it_is(call, {operand: layout}, layout)
    needs = [mirrored if dim in dims else None for dim in range(len(layout))]
    make = partial(make_exchange, layout, needs, lambda x: torch.flip(x, dims), call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def mirrored(blocks: Sequence[Interval]) -> list[Interval]:
    """Intervals that become the balanced blocks when they are put in reverse."""
    size = blocks[-1].stop
    parts = balanced_intervals(size, len(blocks))
    return [Interval(size - part.stop, size - part.start) for part in parts]


def roll(call: Call) -> Decision:
    """`torch.roll`: dims go on at their other end."""
    operand = call.operand
    layout = call.layout(operand)
    given = call.argument(2, "dims")
    if given is None or given in ((), []):
        raise Refused("it rolls all elements as if they had one dim; name the dims")
    dims = [dim % len(layout) for dim in numbers(given)]
    if all(layout[dim] is None for dim in dims):
        return as_it_is(call, {operand: layout}, layout)
    return Decision({operand: layout}, layout, partial(make_roll, layout, call.name))


def make_roll(layout: Layout, what: str, lines: Lines) -> Running:
    """Roll split dims by an exchange, all others on the spot."""
    P_x = lines.partition(layout)
    exchangers: dict[tuple[int, ...], HaloExchanger] = {}

    def run(x: torch.Tensor, shifts: Any, dims: Any) -> torch.Tensor:
        by_dim = [0] * x.dim()
        for shift, dim in zip(numbers(shifts), numbers(dims), strict=True):
            by_dim[dim % x.dim()] += shift
        whole = [dim for dim in range(x.dim()) if layout[dim] is None and by_dim[dim]]
        y = torch.roll(x, [by_dim[dim] for dim in whole], whole) if whole else x
        key = tuple(0 if axis is None else by_dim[dim] for dim, axis in enumerate(layout))
        if key not in exchangers:
            needs = [partial(rolled, shift) if shift else None for shift in key]
            exchangers[key] = HaloExchanger(P_x, needs, edges="circular", what=what)
        return exchangers[key](y)

    return run


def rolled(shift: int, blocks: Sequence[Interval]) -> list[Interval]:
    """Intervals that become the balanced blocks when they are moved on."""
    size = blocks[-1].stop
    parts = balanced_intervals(size, len(blocks))
    return [part.shifted(-(shift % size)) for part in parts]


def make_exchange(
    layout: Layout,
    needs: Sequence[Needed | None],
    function: Callable[[torch.Tensor], torch.Tensor],
    what: str,
    lines: Lines,
) -> Running:
    """Give workers what they need, and call a function of that."""
    exchanger = HaloExchanger(lines.partition(layout), needs, what=what)

    def run(x: torch.Tensor) -> torch.Tensor:
        return function(exchanger(x)) if exchanger.P_x.active else x.clone()

    return run


def make_balanced(
    layout: Layout, function: Callable[..., torch.Tensor], what: str, lines: Lines
) -> Running:
    """Call a function of blocks, and balance those of the result."""
    window = Window(lines.partition(layout), f"balance after {what}")

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not window.P_x.active:
            return x.clone()
        y = function(x, *args, **kwargs)
        return window(y, [Bounds()] * y.dim())

    return run


def repeat(call: Call) -> Decision:
    """`x.repeat` and `torch.tile`: copies one after the other.

    Along a dim that is split, the tensor is gathered, and the result is cut again.
    """
    operand = call.operand
    layout = call.layout(operand)
    num_new = call.result.dim() - len(layout)
    before = [1] * num_new + list(call.shape(operand))
    repeated = [dim for dim, size in enumerate(call.result.shape) if size != before[dim]]
    lifted: Layout = (*(None,) * num_new, *layout)
    whole = without(lifted, repeated)
    want = whole[num_new:]
    gives = call.fitting(lifted, call.result.shape)
    if gives == whole:
        return as_it_is(call, {operand: want}, whole)
    only = tuple(axis if dim in repeated else None for dim, axis in enumerate(gives))
    return Decision({operand: want}, gives, partial(make_cut, only, call))


def make_cut(only: Layout, call: Call, lines: Lines) -> Running:
    """The call itself on replicas, and then cut."""
    cutter = Cutter(lines.partition(only), f"cut after {call.name}")
    run = as_it_is(call, {}, None).make(lines)
    return lambda *args, **kwargs: cutter(run(*args, **kwargs))


def repeat_interleave(call: Call) -> Decision:
    """`repeat_interleave` by one number along a dim: each element several times."""
    operand = call.operand
    layout = call.layout(operand)
    dim = call.argument(2, "dim")
    if dim is None or not isinstance(call.argument(1, "repeats"), int):
        raise Refused("it is known for one number of repeats along a dim; name the dim")
    if layout[dim % len(layout)] is None:
        return as_it_is(call, {operand: layout}, layout)
    run = as_it_is(call, {}, None)
    make = partial(make_of, layout, run.make, call.name)
    return Decision({operand: layout}, layout, make)


def make_of(layout: Layout, make: Callable[[Lines], Running], what: str, lines: Lines) -> Running:
    """The same as `make_balanced`, for a result that is made here."""
    return make_balanced(layout, make(lines), what, lines)


def factor_of(call: Call, name: str) -> int:
    """The factor of a shuffle, of a module or a function."""
    factor = call.argument(1, name) if call.module is None else getattr(call.module, name)
    if not isinstance(factor, int):
        raise Refused(f"its {name} is no whole number")
    return factor


def pixel_shuffle(call: Call) -> Decision:
    """`F.pixel_shuffle`, and the module: from channels to space, block by block."""
    operand = call.operand
    factor = factor_of(call, "upscale_factor")
    layout = without(call.layout(operand), [len(call.layout(operand)) - 3])
    run = partial(functional.pixel_shuffle, upscale_factor=factor)
    make = partial(make_balanced, layout, run, call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def pixel_unshuffle(call: Call) -> Decision:
    """`F.pixel_unshuffle`, and the module: from space to channels."""
    operand = call.operand
    factor = factor_of(call, "downscale_factor")
    layout = without(call.layout(operand), [len(call.layout(operand)) - 3])
    layout = call.fitting(layout, call.result.shape)
    aligned: list[Needed | None] = [None] * (len(layout) - 2)
    aligned += [partial(multiples, factor)] * 2
    run = partial(functional.pixel_unshuffle, downscale_factor=factor)
    make = partial(make_exchange, layout, aligned, run, call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def multiples(factor: int, blocks: Sequence[Interval]) -> list[Interval]:
    """Intervals that become the balanced blocks when several elements become one."""
    parts = balanced_intervals(blocks[-1].stop // factor, len(blocks))
    return [Interval(part.start * factor, part.stop * factor) for part in parts]


def channel_shuffle(call: Call) -> Decision:
    """`nn.ChannelShuffle`, and the function: channels in another order, which are whole."""
    operand = call.operand
    layout = without(call.layout(operand), [1])
    module: nn.Module | None = call.module
    if module is None:
        return as_it_is(call, {operand: layout}, layout)
    return Decision({operand: layout}, layout, lambda lines: module)
