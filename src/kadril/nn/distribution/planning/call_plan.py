"""The plan of a model: for every call that was traced, what is to be done on blocks.

Planning sends nothing and makes nothing, so a model that cannot be distributed is refused before
anything has happened, with a list of all that is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from kadril.nn.distribution.layout import Layout, axes_of, layout_on, whole_layout
from kadril.nn.distribution.nested import leaves
from kadril.nn.distribution.rules.call import Call, Decision, DistributeError, Refused
from kadril.nn.distribution.rules.function_table import FUNCTIONS, function_name, function_rule
from kadril.nn.distribution.rules.functions.factories import FILLS
from kadril.nn.distribution.rules.functions.pointwise import as_it_is
from kadril.nn.distribution.rules.layer_table import layer_rule
from kadril.nn.distribution.tracing.trace import Traced

__all__ = ["CallPlan", "PlannedCall", "plan_calls"]


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
        """Positional arguments."""
        args = self.decision.args
        return tuple(self.node.args if args is None else args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name."""
        kwargs = self.decision.kwargs
        return dict(self.node.kwargs if kwargs is None else kwargs)

    @property
    def inputs(self) -> list[fx.Node]:
        """The nodes that it uses."""
        found: list[fx.Node] = []
        fx.node.map_arg((self.args, self.kwargs), found.append)
        return found


class CallPlan(NamedTuple):
    """Calls to make, in order.

    Attributes:
        inputs: the placeholders, in the order of the arguments.
        attributes: parameters, buffers and constants that are used by themselves.
        calls: those that the result depends on.
        output: nodes of the result, nested as the model returns them.
        layouts: of each node; nested where it gives several tensors.
        shapes: global ones, nested in the same way.
    """

    inputs: list[fx.Node]
    attributes: list[fx.Node]
    calls: list[PlannedCall]
    output: Any
    layouts: Mapping[fx.Node, Any]
    shapes: Mapping[fx.Node, Any]


def plan_calls(
    model: nn.Module, traced: Traced, lengths: Sequence[int], may_gather: bool = False
) -> CallPlan:
    """Decide on all calls.

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
    inputs: list[fx.Node] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            layouts[node] = input_layout(node, traced.shapes[node], lengths)
            inputs.append(node)
            continue
        if node.op == "get_attr":
            layouts[node] = whole_layout(traced.shapes[node])
            continue
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        call = Call(node, module, layouts, traced.shapes, lengths, may_gather)
        try:
            decision = checked(call, decide(call, refused))
        except Refused as why:
            refused[node] = refusal_of(call, str(why))
            # Never runs; it lets the calls after this one be checked too.
            decision = Decision({}, whole_layout(call.result), lambda subgrids: print)
        layouts[node] = decision.gives
        have = {each: layouts[each] for each in decision.wants}
        calls.append(PlannedCall(node, decision, have))
    needed, used = needed_calls(calls, traced.output)
    refusals = list(dict.fromkeys(refused[c.node] for c in needed if c.node in refused))
    if refusals:
        raise DistributeError(refusal_text(model, refusals), refusals)
    attributes = [node for node in used if node.op == "get_attr"]
    return CallPlan(inputs, attributes, needed, traced.output, layouts, traced.shapes)


def decide(call: Call, refused: Collection[fx.Node]) -> Decision:
    """Decide on one call.

    Args:
        call: the call.
        refused: calls before it that cannot be done; how their results are laid out is not known.

    Raises:
        Refused: it cannot be done on blocks.
    """
    node = call.node
    if node.meta.get("is_item"):
        source, place = node.args
        return as_it_is(call, {}, call.layouts[source][place])  # type: ignore[index]
    is_split = any(axes_of(call.layout(each)) or each in refused for each in call.operands)
    if is_split and node.meta["is_state"]:
        raise Refused("it writes a split tensor into a parameter or buffer; reduce it first")
    if call.module is not None:
        return layer_rule(call.module)(call)
    if node.meta["draws"] and not (
        node.target in FUNCTIONS and function_rule(call)(call).is_seeded
    ):
        raise Refused(
            "it draws random numbers, each worker its own; draw them outside and pass them, or use"
            " a dropout of torch"
        )
    if not is_split and node.target not in FILLS and not node.meta["draws"]:
        # Every worker has all that it needs, and does what all do.
        wants = {each: call.layout(each) for each in call.operands}
        return as_it_is(call, wants, whole_layout(call.result))
    return function_rule(call)(call)


def checked(call: Call, decision: Decision) -> Decision:
    """Return a decision, after checking that it lays out all tensors of the call.

    Raises:
        AssertionError: it does not: an error in a rule, that would give wrong results.
    """
    node = call.node
    planned = PlannedCall(node, decision, {})
    unsaid = [each for each in planned.inputs if call.is_tensor(each)]
    unsaid = [each for each in unsaid if each not in {*decision.wants, *decision.handled}]
    if unsaid:
        raise AssertionError(f"{call.name}: its rule says nothing about its operand {unsaid[0]}")
    for each, layout in decision.wants.items():
        check_layout(call, layout, call.shapes[each], f"operand {each}")
    check_nested(call, decision.gives, call.result)
    return decision


def check_nested(call: Call, layout: Any, result: Any) -> None:
    """Make sure that a layout is nested as the result is."""
    if isinstance(result, torch.Tensor):
        check_layout(call, layout, result, "the result")
        return
    items = result.items() if isinstance(result, dict) else enumerate(result)
    for place, each in items:
        if isinstance(each, (torch.Tensor, list, tuple, dict)):
            check_nested(call, layout[place], each)


def check_layout(call: Call, layout: Any, tensor: torch.Tensor, what: str) -> None:
    """Make sure that a tensor can have a layout."""
    axes = [axis for axis in layout if axis is not None] if isinstance(layout, tuple) else None
    if (
        axes is None
        or len(layout) != tensor.dim()
        or len(set(axes)) != len(axes)
        or call.fitting(layout, tensor.shape) != layout
    ):
        raise AssertionError(
            f"{call.name}: its rule gives {what} of shape {tuple(tensor.shape)} the layout {layout}"
        )


def input_layout(node: fx.Node, shape: torch.Tensor, lengths: Sequence[int]) -> Layout:
    """Return the layout of an input on the partition.

    Raises:
        DistributeError: it has fewer elements than there are workers along an axis.
    """
    layout = layout_on(lengths, shape.dim())
    for dim, axis in enumerate(layout):
        if axis is not None and shape.shape[dim] < lengths[axis]:
            raise DistributeError(
                f"the input for {node.target!r} has {shape.shape[dim]} elements along dim {dim},"
                f" too few for {lengths[axis]} workers along axis {axis}"
            )
    return layout


def needed_calls(
    calls: Sequence[PlannedCall], output: Any
) -> tuple[list[PlannedCall], list[fx.Node]]:
    """Return the calls that a result needs, or that have side effects; and all nodes they use."""
    needed = dict.fromkeys(each for each in leaves(output) if isinstance(each, fx.Node))
    kept: list[PlannedCall] = []
    for call in reversed(calls):
        # A batch norm counts, and a write into a buffer stays.
        has_effect = call.node.op == "call_module" or call.node.meta.get("is_state")
        if call.node in needed or has_effect:
            needed.update(dict.fromkeys(call.inputs))
            kept.append(call)
    return kept[::-1], list(needed)


def refusal_of(call: Call, why: str) -> tuple[str, str, str]:
    """Describe a refused call by the module that makes it, where that is of torch."""
    if call.module is not None:
        return call.name, type(call.module).__name__, why
    kind = function_name(call.node)
    if call.node.meta.get("owner") is not None:
        path, module_kind = call.node.meta["owner"]
        return path, module_kind, f"{kind}: {why}"
    return call.name, kind, why


def refusal_text(model: nn.Module, refusals: Sequence[tuple[str, str, str]]) -> str:
    """List the calls that cannot be distributed, line by line."""
    subgrids = [f"\n  {name} ({kind}): {why}" for name, kind, why in refusals]
    return (
        f"cannot distribute {type(model).__name__}; nothing was changed:{''.join(subgrids)}\n"
        "Replace them by layers that kadril.nn knows, or keep them out of the model that is"
        " distributed."
    )
