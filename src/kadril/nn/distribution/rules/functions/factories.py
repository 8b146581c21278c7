"""Rules for tensors that are made in `forward`: every worker makes them, all or its part.

What is filled with one value is made in the layout that it will most likely be needed in. The
others (`arange`, `linspace`, `meshgrid`, ...) are small, or made of small ones: every worker makes
all of them, and takes its block where a call needs that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kadril.nn.distribution.layout import Layout, Subgrids, block_shape
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Rule

__all__ = ["FILLS", "filled"]


def filled(call: Call) -> Decision:
    """Decide on `torch.zeros(...)` and its like."""
    target: Any = call.node.target
    sizes = tuple(call.result.shape)
    layout = call.layout_like(sizes)
    options = {name: each for name, each in call.node.kwargs.items() if name != "size"}
    rest: tuple[Any, ...] = ()
    if target is torch.full and "fill_value" not in options:
        rest = (call.node.args[-1],)
    make = partial(make_filled, partial(target, **options), rest, layout, sizes)
    return Decision({}, layout, make, args=(), kwargs={})


def make_filled(
    function: BlockFunction,
    rest: tuple[Any, ...],
    layout: Layout,
    sizes: tuple[int, ...],
    subgrids: Subgrids,
) -> BlockFunction:
    """Make the block."""
    if not subgrids.P.active:
        return lambda: function(sizes, *rest)
    shape = block_shape(layout, sizes, subgrids.P)
    return lambda: function(shape, *rest)


FILLS: dict[Any, Rule] = dict.fromkeys([torch.zeros, torch.ones, torch.empty, torch.full], filled)
