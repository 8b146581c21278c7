"""Helpers of rules for calls along dims: which dims, which workers have parts, decisions.

x[n, c, h | h, w].sum(2)       dims [2], split; keepdim False; result (n, c, w)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from kadril.nn.distribution.layout import Layout, Subgrids, axes_of, only_dims, without
from kadril.nn.distribution.replicas import WholeGatherer
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Refused, Rule
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.partition import Group

__all__ = [
    "MakeReduction",
    "Reduction",
    "all_dims",
    "along",
    "dims_of",
    "is_split_along",
    "reduce_over",
    "reduced_layout",
    "refuse_dtype",
]


def dims_of(call: Call, default: int | None = None, place: int = 1) -> list[int]:
    """Return the dims that a call goes along; all of them where it names none.

    Args:
        call: the call.
        default: the dim, where the call names none; None for all dims.
        place: of the dim among the arguments.
    """
    given = call.argument(place, "dim", call.argument(place, "axis", default))
    return all_dims(given, len(call.shape(call.operand)))


def all_dims(given: Any, num_dims: int) -> list[int]:
    """Return dims as torch takes them (one, several, none for all), counted from the first."""
    if given is None or given in ([], ()):
        return list(range(num_dims))
    dims = [given] if isinstance(given, int) else list(given)
    return sorted(dim % max(1, num_dims) for dim in dims)


def reduced_layout(layout: Layout, dims: Iterable[int], num_dims: int) -> Layout:
    """Return a layout after some dims were reduced: they are whole, or no longer there.

    Args:
        layout: of the operand.
        dims: that were reduced.
        num_dims: of the result.
    """
    gone = set(dims)
    if num_dims == len(layout):
        return without(layout, gone)
    return tuple(axis for dim, axis in enumerate(layout) if dim not in gone)


def is_split_along(call: Call, dims: Sequence[int]) -> bool:
    """Whether any of these dims of the operand is split."""
    return bool(axes_of(only_dims(call.layout(call.operand), dims)))


class Reduction(NamedTuple):
    """A reduction over dims, some of which are split.

    Attributes:
        layout: of the operand.
        dims: that are reduced.
        keepdim: whether they stay, with one element.
        what: name of the call in errors.
    """

    layout: Layout
    dims: Sequence[int]
    keepdim: bool
    what: str

    def group(self, subgrids: Subgrids) -> Group | None:
        """Return the workers that have parts of what is reduced; None outside the partition."""
        axes = axes_of(only_dims(self.layout, self.dims))
        return subgrids.group(axes) if subgrids.P.active else None

    def gatherer(self, subgrids: Subgrids) -> WholeGatherer:
        """Return what gathers the parts along the dims that are reduced."""
        return WholeGatherer(subgrids.partition(only_dims(self.layout, self.dims)), self.what)

    def squeezed(self, y: torch.Tensor) -> torch.Tensor:
        """Return a result without the dims that were reduced, unless they stay."""
        return y if self.keepdim or not self.dims else y.squeeze(tuple(self.dims))


# Makes what runs where dims are split.
MakeReduction: TypeAlias = Callable[[Reduction, Subgrids], BlockFunction]


def refuse_dtype(call: Call) -> None:
    """Refuse a reduction that changes the dtype.

    Raises:
        Refused: it does.
    """
    if call.node.kwargs.get("dtype") is not None:
        raise Refused("it changes the dtype too; do that in a call of its own")


def reduce_over(call: Call, dims: Sequence[int], make: MakeReduction) -> Decision:
    """Decide on a reduction to one tensor, over dims that may be split.

    Args:
        call: the reduction.
        dims: that it reduces.
        make: makes what runs where they are split.
    """
    operand = call.operand
    layout = call.layout(operand)
    gives = reduced_layout(layout, dims, call.result.dim())
    if not is_split_along(call, dims):
        return as_it_is(call, {operand: layout}, gives)
    keepdim = bool(call.result.dim() == len(layout))
    made = partial(make, Reduction(layout, dims, keepdim, call.name))
    return Decision({operand: layout}, gives, made, args=(operand,), kwargs={})


def along(default: int | None = None, place: int = 1) -> Rule:
    """Return the rule for calls that need their dims whole.

    Args:
        default: the dim, where the call names none; None for all dims.
        place: of the dim among the arguments.
    """

    def rule(call: Call) -> Decision:
        operand = call.operand
        dims = dims_of(call, default, place)
        want = without(call.layout(operand), dims)

        def layout_for(result: object) -> Layout | None:
            if not isinstance(result, torch.Tensor):
                return None
            return reduced_layout(want, dims, result.dim())

        results = call.result
        if isinstance(results, torch.Tensor):
            return as_it_is(call, {operand: want}, layout_for(results))
        return as_it_is(call, {operand: want}, [layout_for(each) for each in results])

    return rule
