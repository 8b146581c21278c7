"""Names by which ranks know a collective.

    given            eager                          in a graph
    name="a"         a                              a, within its scopes; a_1 for a second one
    nothing          the n-th of its kind           the node's name

A name that was given is an attribute of the op, since a node's name changes when a function is
inlined. Iterations of a loop get names of their own, from the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kadril.tensorflow.framework import tf

__all__ = ["OpName", "name_op", "normalize"]


class OpName(NamedTuple):
    """The name of one op."""

    node: str | None  # in the graph
    tensor: str  # what the other ranks know it by; empty: the node's
    is_counted: bool  # it has none, and is the n-th of its kind


def normalize(name: str) -> str:
    """A name by TensorFlow's rules for nodes."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def name_op(
    kind: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool = False
) -> OpName:
    """The name of an op that is about to be made of these tensors."""
    if tf.executing_eagerly():
        return OpName(None, name or "", name is None)
    if name is None:
        ends = [*tensors[:1], *tensors[-1:]]
        inputs = "_".join(dict.fromkeys(name_of(tensor) for tensor in ends))
        return OpName(normalize(f"{kind}_{inputs}" if inputs else kind), "", False)
    node = normalize(name)
    if ignore_name_scope:
        return OpName(node, name, False)
    graph = tf.compat.v1.get_default_graph()
    return OpName(node, graph.unique_name(node, mark_as_used=False), False)


def name_of(tensor: Any) -> str:
    """The name of a tensor, where it has one: an eager one that a function captures has none."""
    try:
        return str(tensor.name)
    except (AttributeError, ValueError):
        return ""
