"""The program of a model: its calls on blocks, for inputs of some global shapes, in some mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.planning.alignment import Movement

__all__ = ["Program", "Step", "nodes_in"]


class Step(NamedTuple):
    """One call of a program.

    Attributes:
        node: that it gives the value of.
        run: what is called.
        args: with nodes for values.
        kwargs: the same, by name.
        movements: that bring operands to the layouts in which they are needed.
        last_uses: nodes whose values are not needed any more.
        expected: shape of this worker's block of the result; nested where it is.
        written: the operand that it writes into, which is then copied where others have it too.
        grad: whether graphs are to be recorded, where `forward` switches that.
    """

    node: fx.Node
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    movements: Mapping[fx.Node, list[Movement]]
    last_uses: list[fx.Node]
    expected: Any
    written: fx.Node | None
    grad: bool | None


class Program:
    """The calls of a model, in order.

    Args:
        inputs: nodes of the inputs.
        attributes: nodes of parameters and buffers, which are found by their path.
        constants: nodes of other tensors, and these.
        steps: the calls.
        output: nodes of the result.
        P_y: where the parts of the result are.
    """

    def __init__(
        self,
        inputs: Sequence[fx.Node],
        attributes: Sequence[fx.Node],
        constants: Mapping[fx.Node, torch.Tensor],
        steps: Sequence[Step],
        output: Any,
        P_y: Any,
    ) -> None:
        self.inputs = inputs
        self.attributes = attributes
        self.constants = constants
        self.steps = steps
        self.output = output
        self.P_y = P_y
        self.writes = any(step.written is not None for step in steps)

    def __call__(self, model: nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
        """Run the program on balanced blocks; collective over the partition."""
        values: dict[fx.Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        for node in self.attributes:
            values[node] = attribute(model, str(node.target))
        values.update(self.constants)
        outer = list(values.values()) if self.writes else []
        for step in self.steps:
            result = run_step(step, values, outer)
            check_block(step, result)
            values[step.node] = result
            for node in step.last_uses:
                del values[node]
        return map_leaves(
            self.output, lambda each: values[each] if isinstance(each, fx.Node) else each
        )


def run_step(step: Step, values: Mapping[fx.Node, Any], outer: Sequence[torch.Tensor]) -> Any:
    """Run one step, with its operands in the layouts it needs."""
    with nullcontext() if step.grad is None else torch.set_grad_enabled(step.grad):
        ready = {}
        # A tensor that appears twice in a call is moved once.
        for node in nodes_in((step.args, step.kwargs)):
            value = values[node]
            for movement in step.movements.get(node, ()):
                value = movement(value)
            if node is step.written and (
                step.movements.get(node) or is_shared(node, value, values, outer)
            ):
                value = value.clone()
            ready[node] = value
        args, kwargs = fx.node.map_arg((step.args, step.kwargs), lambda node: ready[node])
        return step.run(*args, **kwargs)


def is_shared(
    node: fx.Node,
    value: torch.Tensor,
    values: Mapping[fx.Node, Any],
    outer: Sequence[torch.Tensor],
) -> bool:
    """Whether a value shares its memory with another one that is needed, or with an input."""
    mine = value.untyped_storage().data_ptr()
    others = [each for key, each in values.items() if key is not node]
    return any(
        isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() == mine
        for each in leaves([others, outer])
    )


def check_block(step: Step, result: Any) -> None:
    """Check that a call has given the block that its layout promises. Costs next to nothing.

    Raises:
        AssertionError: it has not: a rule is wrong, and the result would be.
    """
    if isinstance(result, torch.Tensor):
        if result.shape != step.expected:
            raise AssertionError(
                f"{step.node.name} ({step.node.target}): the block of its result has shape"
                f" {tuple(result.shape)}, and should have {step.expected}: an error in kadril;"
                " please report it, with the call"
            )
    elif isinstance(result, (list, tuple, dict)):
        items = result.items() if isinstance(result, dict) else enumerate(result)
        for place, each in items:
            check_block(step._replace(expected=step.expected[place]), each)


def nodes_in(value: Any) -> dict[fx.Node, None]:
    """Return the nodes among some arguments, in order."""
    found: dict[fx.Node, None] = {}
    fx.node.map_arg(value, found.setdefault)
    return found


def attribute(model: nn.Module, path: str) -> Any:
    """Return the attribute at a path such as `encoder.scale`."""
    return reduce(getattr, path.split("."), model)
