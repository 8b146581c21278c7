"""The gradients of parameters in a backward graph.

AOTAutograd makes a backward graph whose output i is the gradient of input i of the forward graph,
or None. The inputs of the forward graph include the parameters themselves, so who they are is known
by identity; in the backward graph they are only places.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from kadril.errors import UnsupportedError

__all__ = [
    "ParameterGradient",
    "find_gradients",
    "is_computed",
    "output_node",
    "storage_key",
    "value_of",
]

# Operators whose results are as large as one of their arguments, and never the argument itself.
COMPUTING = {
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution_backward.default,
    torch.ops.aten.mm.default,
}


class ParameterGradient(NamedTuple):
    """A gradient: whose, by which node, and at which place among the outputs."""

    name: str
    node: fx.Node
    output: int


def find_gradients(
    graph: fx.Graph, names: Sequence[str | None], shapes: Mapping[str, torch.Size]
) -> list[ParameterGradient]:
    """Find the gradients of named parameters, in the order in which the graph makes them.

    Args:
        graph: a backward graph.
        names: of the parameter at each input of the forward graph; None for all other inputs.
        shapes: of the parameters, by name.

    Raises:
        UnsupportedError: the outputs are not those of these inputs.
    """
    outputs = output_node(graph).args[0]
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(names):
        raise UnsupportedError(
            f"the backward graph has {len(outputs) if isinstance(outputs, Sequence) else 1} outputs"
            f" for {len(names)} inputs of the forward graph, so its gradients cannot be told apart."
            " Operators with side effects and tensor subclasses do this; compile without"
            ' backend="kadril", and the trainer reduces the gradients as they come'
        )
    found = []
    for output, (name, node) in enumerate(zip(names, outputs, strict=True)):
        if name is None or not isinstance(node, fx.Node):
            continue  # not a parameter, frozen, or not used by this graph
        value = value_of(node)
        if value is None or value.shape != shapes[name]:
            raise UnsupportedError(
                f"output {output} of the backward graph should be the gradient of {name!r}, of"
                f" shape {tuple(shapes[name])}, but is {value}. Compile without"
                ' backend="kadril", and the trainer reduces the gradients as they come'
            )
        found.append(ParameterGradient(name, node, output))
    places = {node: place for place, node in enumerate(graph.nodes)}
    # One node may be the gradient of two parameters, as in a + b: the name decides then.
    return sorted(found, key=lambda gradient: (places[gradient.node], gradient.name))


def output_node(graph: fx.Graph) -> fx.Node:
    """Return the node that holds the outputs."""
    output: fx.Node
    (output,) = graph.find_nodes(op="output")
    return output


def value_of(node: fx.Node) -> torch.Tensor | None:
    """Return the fake tensor that stands for what a node makes; None where that is no tensor."""
    value: Any = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def storage_key(node: fx.Node) -> int | None:
    """Return a key that nodes have in common if, and only if, their tensors share memory."""
    value = value_of(node)
    return None if value is None else value.untyped_storage()._cdata


def is_computed(node: fx.Node) -> bool:
    """Whether a node's result is never one of its arguments, whatever compilers leave out.

    They leave out what changes nothing: a copy of what has the same form, a factor of 1, one part
    that is joined to no other. So where an argument has as many elements it may come to stand for
    the result.
    """
    made = node.all_input_nodes[0] if node.target is operator.getitem else node  # one of several
    if made.op != "call_function":
        return False
    num_elements = num_elements_of(node)
    return made.target in COMPUTING or all(
        num_elements_of(each) != num_elements for each in made.all_input_nodes
    )


def num_elements_of(node: fx.Node) -> int:
    """Return the number of a tensor's elements, dynamic sizes as in the example; 0 for others."""
    value = value_of(node)
    return 0 if value is None else math.prod(hint(length) for length in value.shape)


def storage_bytes(node: fx.Node) -> int:
    """Return the size of the memory behind a node's tensor; dynamic sizes as in the example."""
    value = value_of(node)
    if value is None:
        return 0
    num_bytes = value.untyped_storage().nbytes()
    if isinstance(num_bytes, int):
        return num_bytes
    return num_elements_of(node) * value.element_size()


def hint(length: int | torch.SymInt) -> int:
    """Return a length as it was when the graph was made."""
    return length if isinstance(length, int) else int(length.node.hint)
