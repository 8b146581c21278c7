"""Traces a model: a graph of its calls, for inputs of some global shapes, in some mode.

The model is run once, on tensors without memory (`recorder.py`): nothing is computed, and no memory
is needed. Modules that have a rule are recorded as one call; all others are traced into. The graph
belongs to the sizes of the inputs and to the mode, so a program is made for each combination.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kadril.nn.distribution.module_mode import in_modes
from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.rules.call import DistributeError
from kadril.nn.distribution.rules.layer_table import has_rule
from kadril.nn.distribution.tracing.instrument import (
    calls_recorded,
    nothing_drawn,
    numbers_of,
    refuse_counting,
    state_without_memory,
)
from kadril.nn.distribution.tracing.recorder import Recorder

__all__ = ["Traced", "bind_arguments", "trace"]


class Traced:
    """A graph of calls.

    Attributes:
        graph: the calls, in order; its last node is the output.
        shapes: what each of them gives: tensors on the meta device, or lists of them.
        constants: tensors that were there before the model was called, by their node.
        text: the program that it is, as far as it may differ between models and ranks.
    """

    def __init__(self, recorder: Recorder, output: Any) -> None:
        self.graph = recorder.graph
        self.shapes = recorder.shapes
        self.constants = recorder.constants
        self.output = output
        self.text = "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        for node in self.graph.nodes:
            sizes = map_leaves(self.shapes[node], described)
            target = getattr(node.target, "__name__", node.target)
            flags = (node.meta.get("grad"), node.meta.get("written"))
            lines.append(f"{node.name} = {target}({node.args}, {node.kwargs}) {flags} {sizes}")
        for node, tensor in self.constants.items():
            data = tensor.detach().cpu().contiguous()
            digest = hashlib.sha256(repr(data.tolist()).encode()).hexdigest()
            lines.append(f"{node.name}: {digest}")
        return [*lines, f"{self.output}"]


def described(value: Any) -> str:
    """Describe a value without its numbers."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value)


def trace(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    modes: Mapping[str, bool],
    device: torch.device,
) -> Traced:
    """Record the calls of a model.

    Args:
        model: the ordinary one; it is as before afterwards.
        args: what it is called with: tensors of the global shapes, of which only shape and dtype
            are used, and other values.
        kwargs: the same, by name.
        modes: for each module, by path, whether it is training.
        device: of the tensors that it will get.

    Raises:
        DistributeError: what it does depends on values, it does not take the arguments, or it does
            something that cannot be recorded.
    """
    names = bind_arguments(model, args, kwargs)
    refuse_scripts(model)

    def record() -> Traced:
        recorder = Recorder(attributes, device)
        given = placeholders(recorder, names)
        own_args, own_kwargs = map_leaves(
            (tuple(args), dict(kwargs)), lambda each: given.get(id(each), each)
        )
        with calls_recorded(model, recorder, is_leaf), recorder:
            output = run_model(model, own_args, own_kwargs)
        nodes = map_leaves(output, lambda each: output_node(recorder, model, each))
        return Traced(recorder, nodes)

    before = numbers_of(model)
    with in_modes(model, modes), state_without_memory(model) as attributes, nothing_drawn():
        traced = record()
        first = numbers_of(model)
        if first != before:
            # A size that is kept is the same again; a counter continues.
            record()
            refuse_counting(first, numbers_of(model))
    return traced


def refuse_scripts(model: nn.Module) -> None:
    """Refuse a model with parts that are no Python.

    Raises:
        DistributeError: it has a scripted module.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            why = "a scripted module cannot be traced into; give the module it was made from"
            raise DistributeError(
                f"cannot distribute {type(model).__name__}: {path}: {why}",
                [(path, type(module).__name__, why)],
            )


def run_model(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a model that is recorded.

    Raises:
        DistributeError: it fails.
    """
    try:
        return model(*args, **kwargs)
    except DistributeError as error:
        raise DistributeError(
            f"cannot distribute {type(model).__name__}: {error}", error.refusals
        ) from error.__cause__
    except Exception as error:
        raise DistributeError(
            f"cannot distribute {type(model).__name__}: it cannot be traced: {error}"
        ) from error


def bind_arguments(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the names that the model has for them.

    Raises:
        DistributeError: they are not those that it takes.
    """
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise DistributeError(
            f"cannot distribute {type(model).__name__}: its arguments do not match the example:"
            f" {error}; the example is a tuple with one tensor for each argument"
        ) from None
    return dict(bound.arguments)


def placeholders(recorder: Recorder, names: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Return tensors without memory for the tensors among the arguments, by identity."""
    given: dict[int, torch.Tensor] = {}
    for name, value in names.items():
        tensors = [each for each in leaves(value) if isinstance(each, torch.Tensor)]
        for place, tensor in enumerate(tensors):
            if id(tensor) in given:
                raise DistributeError(f"the tensor for {name!r} is given twice; clone it")
            full = name if tensors == [value] else f"{name}_{place}"
            given[id(tensor)] = recorder.placeholder(full, tensor)
    return given


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is recorded as one call: those with a rule, and those of this library."""
    return has_rule(module) or type(module).__module__.startswith("kadril.")


def output_node(recorder: Recorder, model: nn.Module, value: Any) -> Any:
    """Return the node, or the plain value, of a part of a result.

    Raises:
        DistributeError: it is neither a tensor nor a plain value.
    """
    if isinstance(value, torch.Tensor):
        return recorder.node_of(value, "the result")
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype)):
        return value
    raise DistributeError(
        f"cannot distribute {type(model).__name__}: it returns a {type(value).__name__}; return"
        " tensors, in lists, tuples and dicts"
    )
