"""Plans: for every call of a traced model, what is to be done on blocks.

Planning sends nothing and makes nothing, so a model that cannot be distributed is refused before
anything has happened, with all that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from kadril.nn.distribution.call import Call, Decision, DistributeError, Refused
from kadril.nn.distribution.functions import function_name, function_rule
from kadril.nn.distribution.layers import layer_rule
from kadril.nn.distribution.layout import Layout, layout_on
from kadril.nn.distribution.pointwise import is_in_place
from kadril.nn.distribution.trace import Traced

__all__ = ["Plan", "PlannedCall", "map_nested", "plan"]


class PlannedCall(NamedTuple):
    """A call, and what was decided about it.

    Attributes:
        node: in the graph.
        decision: how it is done.
        have: layout of each operand as it comes.
    """

    node: fx.Node
    decision: Decision
    have: Mapping[fx.Node, Layout]

    @property
    def args(self) -> tuple[Any, ...]:
        """What it is called with."""
        args = self.decision.args
        return tuple(self.node.args if args is None else args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """What it is called with by name."""
        kwargs = self.decision.kwargs
        return dict(self.node.kwargs if kwargs is None else kwargs)

    @property
    def inputs(self) -> list[fx.Node]:
        """The nodes that it needs."""
        found: list[fx.Node] = []
        fx.node.map_arg((self.args, self.kwargs), found.append)
        return found


class Plan(NamedTuple):
    """What is to be done, in order.

    Attributes:
        inputs: the placeholders, and the layout of each; None for what is no tensor.
        attributes: parameters and buffers that are used by themselves.
        calls: those that the result depends on.
        output: nodes of the result, nested as the model returns them.
        layouts: of each node of the result.
    """

    inputs: list[tuple[fx.Node, Layout | None]]
    attributes: list[fx.Node]
    calls: list[PlannedCall]
    output: Any
    layouts: Mapping[fx.Node, Any]


def plan(
    model: nn.Module, traced: Traced, lengths: Sequence[int], may_gather: bool = False
) -> Plan:
    """Decide about all calls.

    Args:
        model: that was traced.
        traced: its calls.
        lengths: of the axes of the partition.
        may_gather: see `distribute`.

    Raises:
        DistributeError: some cannot be done on blocks; all of them are named.
    """
    layouts: dict[fx.Node, Any] = {}
    calls: list[PlannedCall] = []
    refused: dict[fx.Node, tuple[str, str, str]] = {}
    inputs: list[tuple[fx.Node, Layout | None]] = []
    attributes: list[fx.Node] = []
    output: Any = None
    for node in traced.graph.nodes:
        shape = traced.shapes[node]
        if node.op == "placeholder":
            layouts[node] = input_layout(node, shape, lengths)
            inputs.append((node, layouts[node]))
        elif node.op == "get_attr":
            layouts[node] = (None,) * shape.dim() if isinstance(shape, torch.Tensor) else None
            attributes.append(node)
        elif node.op == "output":
            output = node.args[0]
        else:
            module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
            call = Call(node, module, layouts, traced.shapes, lengths, may_gather)
            try:
                decision = decide(call)
            except Refused as why:
                kind = function_name(node) if module is None else type(module).__name__
                refused[node] = (call.name, kind, str(why))
                decision = Decision({}, assumed(shape), lambda lines: print)
            layouts[node] = decision.gives
            have = {each: layouts[each] for each in decision.wants}
            calls.append(PlannedCall(node, decision, have))
    needed = needed_calls(calls, output)
    refusals = [refused[call.node] for call in needed if call.node in refused]
    if refusals:
        raise DistributeError(refusal_text(model, refusals), refusals)
    return Plan(
        inputs,
        attributes,
        needed,
        output,
        layouts,
    )


def map_nested(value: Any, function: Callable[[fx.Node], Any]) -> Any:
    """What a model returns, with something else for each node: plain lists, tuples and dicts."""
    if isinstance(value, fx.Node):
        return function(value)
    if isinstance(value, dict):
        return {name: map_nested(each, function) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map_nested(each, function) for each in value)
    if isinstance(value, list):
        return [map_nested(each, function) for each in value]
    return value


def decide(call: Call) -> Decision:
    """The decision about one call.

    Raises:
        Refused: it cannot be done on blocks.
    """
    rule = function_rule(call) if call.module is None else layer_rule(call.module)
    return rule(call)


def assumed(shape: Any) -> Any:
    """A layout for the result of a refused call, so that those after it can be looked at too."""
    if isinstance(shape, torch.Tensor):
        return (None,) * shape.dim()
    return [assumed(each) for each in shape] if isinstance(shape, (list, tuple)) else None


def input_layout(node: fx.Node, shape: Any, lengths: Sequence[int]) -> Layout | None:
    """How an input lies on the partition.

    Raises:
        DistributeError: it has fewer elements than there are workers along an axis.
    """
    if not isinstance(shape, torch.Tensor):
        return None
    layout = layout_on(lengths, shape.dim())
    for dim, axis in enumerate(layout):
        if axis is not None and shape.shape[dim] < lengths[axis]:
            raise DistributeError(
                f"the example for {node.target!r} has {shape.shape[dim]} elements along dim {dim},"
                f" too few for {lengths[axis]} workers along axis {axis}"
            )
    return layout


def needed_calls(calls: Sequence[PlannedCall], output: Any) -> list[PlannedCall]:
    """The calls that a result depends on: shapes, for example, are often asked for in vain."""
    needed: set[fx.Node] = set()
    fx.node.map_arg(output, needed.add)
    kept: list[PlannedCall] = []
    for call in reversed(calls):
        if call.node in needed or has_effect(call.node):
            needed.update(call.inputs)
            kept.append(call)
    return kept[::-1]


def has_effect(node: fx.Node) -> bool:
    """Whether a call may do something besides giving a result, as a batch norm does."""
    return node.op == "call_module" or is_in_place(node)


def refusal_text(model: nn.Module, refusals: Sequence[tuple[str, str, str]]) -> str:
    """What cannot be distributed, line by line."""
    lines = [f"\n  {name} ({kind}): {why}" for name, kind, why in refusals]
    return (
        f"cannot distribute {type(model).__name__}; nothing was changed:{''.join(lines)}\n"
        "Replace them by layers that kadril.nn knows, or keep them out of the model that is"
        " distributed."
    )
