"""A call of a traced model, and the decision on how to do it on blocks. Nothing is sent.

    layouts of the operands  --rule-->  Decision:  how operands are to be laid out (`wants`)
                                                   how the result is laid out     (`gives`)
                                                   how to make what runs          (`make`)

Where an operand has another layout than it is needed in, it is brought there before the call
(`planning/alignment.py`). The work of a call is split along the axes of its operands; an operand
that is not split along one of these axes is used by all workers along it, so its gradient is summed
over them (`ops.spread`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx, nn

from kadril.nn.distribution.layout import Layout, Subgrids, axes_of, without

__all__ = ["Call", "Decision", "DistributeError", "Refused", "Rule"]

# What runs in place of a call: from the operands to the result.
BlockFunction: TypeAlias = Callable[..., Any]


class DistributeError(ValueError):
    """A model cannot be distributed; nothing was changed.

    Attributes:
        refusals: path of the module or name of the call, its class or function, and why.
    """

    def __init__(self, message: str, refusals: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.refusals = list(refusals)


class Refused(Exception):  # noqa: N818 - an answer to one question, not the error that users see
    """Refusal of a call that cannot be distributed, with the reason."""


class Decision(NamedTuple):
    """A decision on how to do a call.

    Attributes:
        wants: layout in which each operand is needed; tensors only.
        gives: layout of the result, a list of them for a list of tensors, or None for others.
        make: what runs, from the subgrids of the partition; collective over it.
        args: operands, where they differ from those of the call.
        kwargs: the same, for those with names.
        handled: operands that what runs brings where it needs them by itself, and whose gradients
            it sums over the workers.
        splits: axes along which the work is split although no operand is.
        is_seeded: whether it draws the random numbers that replicas have to have in common; a call
            that draws is refused otherwise.
    """

    wants: Mapping[fx.Node, Layout]
    gives: Any
    make: Callable[[Subgrids], BlockFunction]
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    handled: frozenset[fx.Node] = frozenset()
    splits: frozenset[int] = frozenset()
    is_seeded: bool = False

    @property
    def work(self) -> frozenset[int]:
        """The axes along which the work is split."""
        return self.splits.union(*(axes_of(layout) for layout in self.wants.values()))


class Call:
    """A call, and what is known about it.

    Attributes:
        node: in the graph.
        name: of the call, for errors.
        module: that is called; None for functions and methods.
        layouts: of all that came before.
        shapes: of everything, on the example.
        lengths: of the axes of the partition.
        may_gather: whether operands may be gathered for calls without a partitioned form.
    """

    def __init__(
        self,
        node: fx.Node,
        module: nn.Module | None,
        layouts: Mapping[fx.Node, Any],
        shapes: Mapping[fx.Node, Any],
        lengths: Sequence[int],
        may_gather: bool = False,
    ) -> None:
        self.node = node
        self.name = str(node.target) if module is not None else node.name
        self.module = module
        self.layouts = layouts
        self.shapes = shapes
        self.lengths = lengths
        self.may_gather = may_gather

    @property
    def result(self) -> Any:
        """Result of the call on the example."""
        return self.shapes[self.node]

    @property
    def operands(self) -> list[fx.Node]:
        """Tensors that the call is given, in their order."""
        return [each for each in self.node.all_input_nodes if self.is_tensor(each)]

    @property
    def operand(self) -> fx.Node:
        """The only tensor that the call is given.

        Raises:
            Refused: there are more.
        """
        operands = self.operands
        if len(operands) != 1:
            raise Refused(f"it is called with {len(operands)} tensors; only one is supported")
        return operands[0]

    def is_tensor(self, node: fx.Node) -> bool:
        """Whether a node gives a tensor."""
        return isinstance(self.shapes[node], torch.Tensor)

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Return the global shape of an operand, on the example."""
        return tuple(self.shapes[node].shape)

    def layout(self, node: fx.Node) -> Layout:
        """Return the layout that an operand has."""
        layout: Layout = self.layouts[node]
        return layout

    def example_of(self, value: Any) -> Any:
        """Return an argument, with nodes replaced by what they give on the example."""
        return fx.node.map_arg(value, lambda node: self.shapes[node])

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument of the call, as it is on the example."""
        args, kwargs = self.node.args, self.node.kwargs
        if name in kwargs:
            return self.example_of(kwargs[name])
        return self.example_of(args[place]) if place < len(args) else default

    def layout_like(self, sizes: Sequence[int]) -> Layout:
        """Return the layout of the last tensor with some global shape; whole where there is none.

        For results that can have any layout: they will most likely meet a tensor of their shape.
        """
        for node, layout in reversed(list(self.layouts.items())):
            if self.is_tensor(node) and self.shape(node) == tuple(sizes):
                found: Layout = layout
                return found
        return (None,) * len(sizes)

    def fitting(self, layout: Layout, sizes: Sequence[int]) -> Layout:
        """Return a layout in which dims with fewer elements than workers are whole."""
        small = [
            dim
            for dim, (axis, size) in enumerate(zip(layout, sizes, strict=False))
            if axis is not None and size < self.lengths[axis]
        ]
        return without(layout, small)


Rule: TypeAlias = Callable[[Call], Decision]
