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

from kadril.nn.distribution.layout import Layout, Subgrids, only_dims, without
from kadril.nn.distribution.replicas import Cutter
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.functions.slices import Bounds, Window
from kadril.ops.halo import HaloExchanger, Needed
from kadril.partition import Interval, balanced_intervals

__all__ = ["REARRANGEMENTS", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]


def numbers(value: Any) -> list[int]:
    """Return one number, or several, as a list."""
    return [value] if isinstance(value, int) else list(value)


def flip(call: Call) -> Decision:
    """Decide on `torch.flip`, `fliplr` and `flipud`."""
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
    """Return the intervals that become the balanced blocks when they are reversed."""
    size = blocks[-1].stop
    parts = balanced_intervals(size, len(blocks))
    return [Interval(size - part.stop, size - part.start) for part in parts]


def roll(call: Call) -> Decision:
    """Decide on `torch.roll`."""
    operand = call.operand
    layout = call.layout(operand)
    given = call.argument(2, "dims")
    if given is None or given in ((), []):
        raise Refused("it rolls all elements as if they had one dim; name the dims")
    dims = [dim % len(layout) for dim in numbers(given)]
    if all(layout[dim] is None for dim in dims):
        return as_it_is(call, {operand: layout}, layout)
    return Decision({operand: layout}, layout, partial(make_roll, layout, call.name))


def make_roll(layout: Layout, what: str, subgrids: Subgrids) -> BlockFunction:
    """Roll split dims by an exchange, all others in place."""
    P_x = subgrids.partition(layout)
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
    """Return the intervals that become the balanced blocks when they are shifted."""
    size = blocks[-1].stop
    parts = balanced_intervals(size, len(blocks))
    return [part.shifted(-(shift % size)) for part in parts]


def make_exchange(
    layout: Layout,
    needs: Sequence[Needed | None],
    function: Callable[[torch.Tensor], torch.Tensor],
    what: str,
    subgrids: Subgrids,
) -> BlockFunction:
    """Exchange what workers need, and call a function with it."""
    exchanger = HaloExchanger(subgrids.partition(layout), needs, what=what)

    def run(x: torch.Tensor) -> torch.Tensor:
        return function(exchanger(x)) if exchanger.P_x.active else x.clone()

    return run


def make_balanced(
    layout: Layout, function: Callable[..., torch.Tensor], what: str, subgrids: Subgrids
) -> BlockFunction:
    """Call a function of blocks, and balance those of the result."""
    window = Window(subgrids.partition(layout), f"balance after {what}")

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not window.P_x.active:
            return x.clone()
        y = function(x, *args, **kwargs)
        return window(y, [Bounds()] * y.dim())

    return run


def repeat(call: Call) -> Decision:
    """Decide on `x.repeat` and `torch.tile`.

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
    only = only_dims(gives, repeated)
    return Decision({operand: want}, gives, partial(make_cut, only, call))


def make_cut(only: Layout, call: Call, subgrids: Subgrids) -> BlockFunction:
    """Run the call on replicas, and take the blocks of its result."""
    cutter = Cutter(subgrids.partition(only), f"cut after {call.name}")
    run = as_it_is(call, {}, None).make(subgrids)
    return lambda *args, **kwargs: cutter(run(*args, **kwargs))


def repeat_interleave(call: Call) -> Decision:
    """Decide on `repeat_interleave` by one number along a dim."""
    operand = call.operand
    layout = call.layout(operand)
    dim = call.argument(2, "dim")
    if dim is None or not isinstance(call.argument(1, "repeats"), int):
        raise Refused("only one number of repeats along a dim is supported; name the dim")
    if layout[dim % len(layout)] is None:
        return as_it_is(call, {operand: layout}, layout)
    run = as_it_is(call, {}, None)
    make = partial(make_of, layout, run.make, call.name)
    return Decision({operand: layout}, layout, make)


def make_of(
    layout: Layout, make: Callable[[Subgrids], BlockFunction], what: str, subgrids: Subgrids
) -> BlockFunction:
    """Make what `make_balanced` makes, of a function that has to be made first."""
    return make_balanced(layout, make(subgrids), what, subgrids)


def factor_of(call: Call, name: str) -> int:
    """Return the factor of a shuffle, of a module or a function."""
    factor = call.argument(1, name) if call.module is None else getattr(call.module, name)
    if not isinstance(factor, int):
        raise Refused(f"its {name} is not an integer")
    return factor


def pixel_shuffle(call: Call) -> Decision:
    """Decide on `F.pixel_shuffle`, and the module: from channels to space."""
    operand = call.operand
    factor = factor_of(call, "upscale_factor")
    layout = without(call.layout(operand), [len(call.layout(operand)) - 3])
    run = partial(functional.pixel_shuffle, upscale_factor=factor)
    make = partial(make_balanced, layout, run, call.name)
    return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})


def pixel_unshuffle(call: Call) -> Decision:
    """Decide on `F.pixel_unshuffle`, and the module: from space to channels."""
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
    """Return the intervals that become the balanced blocks when several elements become one."""
    parts = balanced_intervals(blocks[-1].stop // factor, len(blocks))
    return [Interval(part.start * factor, part.stop * factor) for part in parts]


def channel_shuffle(call: Call) -> Decision:
    """Decide on `nn.ChannelShuffle`, and the function; channels are whole."""
    operand = call.operand
    layout = without(call.layout(operand), [1])
    module: nn.Module | None = call.module
    if module is None:
        return as_it_is(call, {operand: layout}, layout)
    return Decision({operand: layout}, layout, lambda subgrids: module)


REARRANGEMENTS: dict[str, Rule] = {
    "flip fliplr flipud": flip,
    "roll": roll,
    "repeat tile": repeat,
    "repeat_interleave": repeat_interleave,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "channel_shuffle native_channel_shuffle": channel_shuffle,
}
