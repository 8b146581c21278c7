"""Tracing: a model as a graph of calls, with the shape that each of them gives on an example.

Modules of `torch.nn` are taken as they are; everything else is looked into. Training and evaluation
may take different ways through a model, and `F.dropout(x, training=self.training)` writes the
mode into the graph: so both are traced, and where they differ, both are kept.

Shapes are found on the meta device: nothing is computed, and no memory is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call

from kadril.nn.distribution.call import DistributeError

__all__ = ["Shapes", "Traced", "attribute", "trace"]

# For each node, what it gives: tensors on the meta device, numbers, or lists of them.
Shapes = dict[fx.Node, Any]


class Traced:
    """A graph of calls.

    Attributes:
        graph: the calls, in order.
        shapes: what each of them gives.
        text: the program that it is, as far as it may differ between models.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, example: Sequence[torch.Tensor]) -> None:
        self.graph = graph
        self.shapes = find_shapes(model, graph, example)
        self.text = "\n".join(node.format_node() or "" for node in graph.nodes)


def trace(model: nn.Module, example: Sequence[torch.Tensor]) -> tuple[Traced, Traced]:
    """The graphs of a model in training and in evaluation; one and the same where they agree.

    Raises:
        DistributeError: the way through it depends on values, or it does not take the example.
    """
    graphs = []
    for mode in (True, False):
        with in_mode(model, mode):
            graphs.append(graph_of(model))
    # Layers give the same shapes in both modes, and in evaluation none asks for a larger batch.
    with in_mode(model, False):
        training = Traced(model, graphs[0], example)
        evaluation = Traced(model, graphs[1], example)
    return (training, training if training.text == evaluation.text else evaluation)


def graph_of(model: nn.Module) -> fx.Graph:
    """The calls of a model in the mode that it is in."""
    tracer = ModelTracer()
    if tracer.is_leaf_module(model, ""):
        graph = fx.Graph()
        graph.output(graph.call_module("", (graph.placeholder("x"),)))
        return graph
    try:
        return tracer.trace(model)
    except Exception as error:
        raise DistributeError(
            f"cannot distribute {type(model).__name__}: its calls cannot be traced: {error}. What"
            " it does must not depend on the values of tensors, nor branch on their shapes"
        ) from error


class ModelTracer(fx.Tracer):
    """Looks into everything but the modules of torch, and those of this library."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is taken as it is."""
        is_ours = type(m).__module__.startswith("kadril.")
        return is_ours or super().is_leaf_module(m, module_qualified_name)


@contextmanager
def in_mode(model: nn.Module, mode: bool) -> Iterator[None]:
    """Set all modules to training or evaluation, and put each back afterwards."""
    before = {module: module.training for module in model.modules()}
    try:
        model.train(mode)
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


def as_meta(value: Any) -> Any:
    """A tensor without memory."""
    return torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value


def find_shapes(model: nn.Module, graph: fx.Graph, example: Sequence[torch.Tensor]) -> Shapes:
    """What each node of a graph gives.

    Raises:
        DistributeError: a call fails, as it would with tensors of these shapes.
    """
    shapes: Shapes = {}
    given = iter(example)
    for node in graph.nodes:
        args = fx.node.map_arg(node.args, lambda each: shapes[each])
        kwargs = fx.node.map_arg(node.kwargs, lambda each: shapes[each])
        try:
            if node.op == "placeholder":
                shapes[node] = as_meta(next(given, *args))
            else:
                shapes[node] = result_of(model, node, args, kwargs)
        except StopIteration:
            raise DistributeError(
                f"cannot distribute {type(model).__name__}: the example has nothing for"
                f" {node.target!r}; give a tuple with one tensor for each argument"
            ) from None
        except Exception as error:
            raise DistributeError(
                f"cannot distribute {type(model).__name__}: it fails on the example, at"
                f" {node.format_node()}: {error}"
            ) from error
    if any(True for _ in given):
        raise DistributeError(
            f"cannot distribute {type(model).__name__}: the example has more tensors than the"
            " model takes"
        )
    return shapes


@torch.no_grad()
def result_of(model: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What one call gives."""
    target: Any = node.target
    if node.op == "get_attr":
        return as_meta(attribute(model, target))
    if node.op == "call_module":
        module = model.get_submodule(target)
        state = [*module.named_parameters(), *module.named_buffers()]
        return functional_call(module, {name: as_meta(each) for name, each in state}, args, kwargs)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return args[0] if node.op == "output" else target(*args, **kwargs)


def attribute(model: nn.Module, path: str) -> Any:
    """What a path leads to, such as `encoder.scale`."""
    return reduce(getattr, path.split("."), model)
