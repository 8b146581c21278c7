"""Rules for calls that treat positions alike: element by element, and concatenation.

Where operands are split differently, the result is split as much as any of them: the others are
cut.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from kadril.nn.distribution.layout import Layout, Subgrids, only_dims, without
from kadril.nn.distribution.replicas import Cutter
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused

__all__ = ["as_it_is", "cat", "common_layout", "pointwise", "runner", "share_of", "stack"]


def runner(node: fx.Node) -> BlockFunction:
    """Return the function or method of a node itself."""
    target: Any = node.target
    if node.op == "call_method":
        return lambda first, *rest, **named: getattr(first, target)(*rest, **named)
    function: BlockFunction = assign if target is operator.setitem else target
    return function


def assign(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Assign, as a call that returns `x`."""
    x[index] = value
    return x


def as_it_is(call: Call, wants: dict[fx.Node, Layout], gives: Any) -> Decision:
    """Decide to run the call itself on blocks."""
    return Decision(wants, gives, lambda subgrids: runner(call.node))


def common_layout(sizes: Sequence[int], operands: Sequence[tuple[Sequence[int], Layout]]) -> Layout:
    """Return the layout of a result that operands are broadcast to.

    Args:
        sizes: of the result.
        operands: sizes and layout of each; dims are matched from the right.
    """
    chosen: list[int | None] = [None] * len(sizes)
    # Those that are split the most come first, so that they need not be moved.
    ranked = sorted(operands, key=lambda each: -sum(axis is not None for axis in each[1]))
    for own, layout in ranked:
        shift = len(sizes) - len(own)
        for dim, axis in enumerate(layout):
            is_free = chosen[shift + dim] is None and axis not in chosen
            if axis is not None and is_free and own[dim] == sizes[shift + dim]:
                chosen[shift + dim] = axis
    return tuple(chosen)


def share_of(layout: Layout, sizes: Sequence[int], own: Sequence[int]) -> Layout:
    """Return an operand's part of a common layout; dims that are broadcast are whole."""
    shift = len(sizes) - len(own)
    return tuple(
        layout[shift + dim] if size == sizes[shift + dim] else None for dim, size in enumerate(own)
    )


def pointwise(call: Call) -> Decision:
    """Decide on a call that works element by element, with NumPy's broadcasting."""
    if not isinstance(call.result, torch.Tensor):
        raise Refused("it does not return one tensor")
    sizes = tuple(call.result.shape)
    operands = [(call.shape(each), call.layout(each)) for each in call.operands]
    layout = common_layout(sizes, operands)
    wants = {each: share_of(layout, sizes, call.shape(each)) for each in call.operands}
    return as_it_is(call, wants, layout)


def cat(call: Call) -> Decision:
    """Decide on `cat`.

    Along a dim that is split, operands are gathered, and the result is cut again.
    """
    sizes = tuple(call.result.shape)
    dim = call.argument(1, "dim", call.argument(1, "axis", 0)) % len(sizes)
    if any(len(call.shape(each)) != len(sizes) for each in call.operands):
        raise Refused("it concatenates an empty tensor of another number of dims")
    # The others' sizes along the dim do not matter: there, they are all taken whole.
    operands = [((*sizes,), call.layout(each)) for each in call.operands]
    layout = common_layout(sizes, operands)
    whole = without(layout, [dim])
    if layout[dim] is None:
        return as_it_is(call, dict.fromkeys(call.operands, whole), whole)
    only = only_dims(layout, [dim])
    return Decision(
        dict.fromkeys(call.operands, whole), layout, partial(make_cut_cat, only, call.name)
    )


def make_cut_cat(only: Layout, what: str, subgrids: Subgrids) -> BlockFunction:
    """Concatenate replicas, then take the blocks."""
    cutter = Cutter(subgrids.partition(only), f"cut after {what}")

    def run(tensors: list[torch.Tensor], dim: int = 0, **named: int) -> torch.Tensor:
        return cutter(torch.cat(tensors, named.get("axis", dim)))

    return run


def stack(call: Call) -> Decision:
    """Decide on `stack`."""
    dim = call.argument(1, "dim", 0) % call.result.dim()
    sizes = tuple(size for each, size in enumerate(call.result.shape) if each != dim)
    layout = common_layout(sizes, [(sizes, call.layout(each)) for each in call.operands])
    gives = (*layout[:dim], None, *layout[dim:])
    return as_it_is(call, dict.fromkeys(call.operands, layout), gives)
