"""The pass: puts reductions into a backward graph, and takes gradients out of it.

    before                     phase 1                        phase 2, where another rank owns w
    ------                     -------                        ----------------------------------
                               token = begin_gradients        token = begin_gradients
    gw = mm(dy, x)             gw = mm(dy, x)                 gw = mm(dy, x)
                               send_gradient(gw, token, 0)    give_gradient_(gw, token, 0)
                                                              (gw is freed here)
    dx = mm(dy, w)             dx = mm(dy, w)                 dx = mm(dy, w)
    ...                        ...                            ...
    return gw, ...             return gw, ...                 return None, ...

Both phases send the same gradients in the same order, so ranks may be in different phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from kadril.sharded.graph.gradient_plan import GradientPlan
from kadril.sharded.graph.graph_gradients import (
    ParameterGradient,
    find_gradients,
    is_computed,
    output_node,
    storage_key,
    value_of,
)
from kadril.sharded.graph.operators import BEGIN, COPY, GIVE, REDUCE, SEND
from kadril.sharded.graph.options import Order
from kadril.sharded.graph.registry import Registration

__all__ = ["reduce_gradients"]


def reduce_gradients(
    graph: fx.Graph,
    names: Sequence[str | None],
    found: Registration,
    *,
    partition_grad: bool = True,
    order: Order = "graph",
) -> list[ParameterGradient]:
    """Run the pass on a backward graph, in place.

    Args:
        graph: a backward graph of AOTAutograd.
        names: of the parameter at each input of the forward graph; None for all other inputs.
        found: the plan that says who owns what.
        partition_grad: also phase 2: drop the gradients that this rank does not own.
        order: "graph": as the first graph makes them, so that each is sent as soon as it is there;
            "parameters": last parameter first, whatever the graph.

    Returns:
        The gradients, in the order in which they are reduced.
    """
    plan = found.plan
    shapes = {name: plan.parameter_of(name).shape for name in names if name is not None}
    gradients = find_gradients(graph, names, shapes)
    if not partition_grad:
        # What each rank gets a part of is handed out then, and goes its way from `.grad`.
        gradients = [each for each in gradients if plan.owner_of(each.name) is not None]
    if not gradients:
        return []
    ordered = put_in_order(gradients, found, order)
    add_reductions(graph, ordered, found, partition_grad)
    if partition_grad:
        drop_outputs(graph, ordered, plan)
    graph.lint()
    return ordered


def put_in_order(
    gradients: Iterable[ParameterGradient], found: Registration, order: Order
) -> list[ParameterGradient]:
    """Return gradients in the order of the reductions."""
    by_name = {gradient.name: gradient for gradient in gradients}
    if order == "parameters":
        names = [name for name in reversed(found.plan.names) if name in by_name]
    else:
        names = found.in_order(by_name)
    return [by_name[name] for name in names]


def add_reductions(
    graph: fx.Graph,
    gradients: Sequence[ParameterGradient],
    found: Registration,
    partition_grad: bool,
) -> None:
    """Add a reduction after each gradient's node, and after the previous reduction (phase 1)."""
    plan, total = found.plan, len(gradients)
    places = {node: place for place, node in enumerate(graph.nodes)}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    last_place = places[last]
    fake_mode = fake_mode_of(gradients[0].node)
    with graph.inserting_after(last):
        token = graph.call_function(BEGIN, (found.key, total))
    with fake_mode:
        token.meta["val"] = torch.empty(1, dtype=torch.int64)
    last = token
    for place, gradient in enumerate(gradients):
        if places[gradient.node] > last_place:
            last, last_place = gradient.node, places[gradient.node]
        is_owner = plan.owner_of(gradient.name) == plan.rank
        node = gradient.node
        is_alone = can_be_overwritten(graph, gradient)
        if is_owner and not is_alone:
            last = node = add_copy(graph, gradient, last)
        arguments = (node, token, found.key, gradient.name, place, total)
        with graph.inserting_after(last):
            if is_owner:
                last = graph.call_function(REDUCE, arguments)
            elif partition_grad and is_alone:
                last = graph.call_function(GIVE, arguments)
            else:
                last = graph.call_function(SEND, (*arguments, partition_grad))
        last.meta["val"] = None


def can_be_overwritten(graph: fx.Graph, gradient: ParameterGradient) -> bool:
    """Whether the memory of a gradient is nobody else's, and in one piece.

    A gradient may be a view of an input, as in `y = x + bias`, or be read again by other nodes: a
    reduction in place would change what they see. It may be a copy of such a tensor, too, and the
    inner compiler leave out the copy: it does not ask who writes to it.
    """
    value = value_of(gradient.node)
    if value is None or not value.is_contiguous():
        return False
    key = storage_key(gradient.node)
    relatives = [node for node in graph.nodes if storage_key(node) == key]
    if not is_computed(relatives[0]):
        return False
    readers = {user for node in relatives for user in node.users} - set(relatives)
    outputs = output_node(graph)
    handed_out = [node for node in outputs.args[0] if node in relatives]  # type: ignore[union-attr]
    return readers == {outputs} and len(handed_out) == 1


def add_copy(graph: fx.Graph, gradient: ParameterGradient, after: fx.Node) -> fx.Node:
    """Have the graph copy a gradient, and hand the copy out in its place."""
    value = value_of(gradient.node)
    assert value is not None  # noqa: S101 - `find_gradients` gives tensors only
    with graph.inserting_after(after):
        copy = graph.call_function(COPY, (gradient.node,))
    with fake_mode_of(gradient.node):
        copy.meta["val"] = value.clone(memory_format=torch.contiguous_format)
    set_output(graph, gradient.output, copy)
    return copy


def drop_outputs(
    graph: fx.Graph, gradients: Iterable[ParameterGradient], plan: GradientPlan
) -> None:
    """Take what another rank owns out of the outputs: its last use is the reduction (phase 2)."""
    for gradient in gradients:
        if plan.owner_of(gradient.name) != plan.rank:
            set_output(graph, gradient.output, None)
            plan.note_dropped(gradient.name)


def set_output(graph: fx.Graph, place: int, node: fx.Node | None) -> None:
    """Replace one output."""
    output = output_node(graph)
    outputs = list(output.args[0])  # type: ignore[arg-type]
    outputs[place] = node
    output.args = (tuple(outputs),)


def fake_mode_of(node: fx.Node) -> torch._subclasses.FakeTensorMode:
    """Return the mode in which the values of a graph's nodes were made."""
    value = value_of(node)
    assert isinstance(value, torch._subclasses.FakeTensor)  # noqa: S101 - AOTAutograd makes no others
    return value.fake_mode
