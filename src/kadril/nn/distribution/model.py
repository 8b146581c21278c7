"""A model on a partition: the modules of the ordinary one, and programs that call their twins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from kadril.nn.distribution.align import make_alignment
from kadril.nn.distribution.call import DistributeError
from kadril.nn.distribution.layout import Layout, Lines
from kadril.nn.distribution.plan import Plan, PlannedCall, map_nested
from kadril.nn.distribution.replicas import join, split
from kadril.nn.distribution.trace import attribute
from kadril.ops.calling import uncompiled
from kadril.ops.halo import HaloExchanger
from kadril.ops.structure import agree
from kadril.partition import Partition, balanced_intervals

__all__ = ["Builder", "DistributedModel", "Program"]

Movement = Callable[[torch.Tensor], torch.Tensor]


class Step(NamedTuple):
    """One call of a program.

    Attributes:
        node: that it gives the value of.
        run: what is called.
        args: with nodes for values.
        kwargs: the same, by name.
        movements: what brings operands where they are needed.
        last_uses: nodes whose values are not needed any more.
    """

    node: fx.Node
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    movements: dict[fx.Node, list[Movement]]
    last_uses: list[fx.Node]


class Entrance:
    """Takes blocks of an input, checks that they fit together, and balances them.

    Args:
        P_x: where the input is.
        what: for errors.
    """

    def __init__(self, P_x: Partition, what: str) -> None:
        self.P_x = P_x
        self.what = what
        self._exchanger = HaloExchanger(
            P_x,
            [lambda have: balanced_intervals(have[-1].stop, len(have))] * P_x.dim,
            what=what,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The balanced block; collective over the partition.

        Raises:
            ValueError: the partition does not fit to the tensor.
            MismatchError: the blocks do not fit together.
        """
        structure = agree(self.P_x, x, self.what)
        blocks = structure.blocks(self.what)
        for dim, have in enumerate(blocks):
            if have[-1].stop < len(have):
                raise ValueError(
                    f"{self.what}: dim {dim} has {have[-1].stop} elements, too few for"
                    f" {len(have)} workers along axis {dim}"
                )
        if all(have == balanced_intervals(have[-1].stop, len(have)) for have in blocks):
            return x
        return self._exchanger.exchange(x, structure)


class Program:
    """The calls of a model in one mode, in order.

    Args:
        entrances: for each argument, its node and what takes it; None for what is no tensor.
        attributes: parameters and buffers that are used by themselves, by path.
        steps: the calls.
        output: nodes of the result.
    """

    def __init__(
        self,
        entrances: Sequence[tuple[fx.Node, Entrance | None]],
        attributes: Sequence[fx.Node],
        steps: Sequence[Step],
        output: Any,
    ) -> None:
        self.entrances = entrances
        self.attributes = attributes
        self.steps = steps
        self.output = output

    def __call__(self, model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run it on blocks; collective over the partition."""
        values: dict[fx.Node, Any] = {}
        given = list(args)
        named = dict(kwargs)
        for node, entrance in self.entrances:
            name = str(node.target)
            if given:
                value = given.pop(0)
            elif name in named:
                value = named.pop(name)
            elif node.args:
                value = node.args[0]
            else:
                raise TypeError(f"the model takes {name!r}, which was not given")
            values[node] = value if entrance is None else entrance(value)
        if given or named:
            raise TypeError(f"the model does not take {[*named] or 'so many arguments'}")
        for node in self.attributes:
            values[node] = attribute(model, str(node.target))
        for step in self.steps:
            values[step.node] = run_step(step, values)
            for node in step.last_uses:
                del values[node]
        return map_nested(self.output, lambda node: values[node])


def run_step(step: Step, values: dict[fx.Node, Any]) -> Any:
    """One call, with its operands where they are needed."""

    def value_of(node: fx.Node) -> Any:
        value = values[node]
        for movement in step.movements.get(node, ()):
            value = movement(value)
        return value

    # A tensor that appears twice in a call is moved once.
    ready = {node: value_of(node) for node in nodes_in((step.args, step.kwargs))}
    args, kwargs = fx.node.map_arg((step.args, step.kwargs), lambda node: ready[node])
    return step.run(*args, **kwargs)


def nodes_in(value: Any) -> dict[fx.Node, None]:
    """The nodes among some arguments, in order."""
    found: dict[fx.Node, None] = {}
    fx.node.map_arg(value, found.setdefault)
    return found


class DistributedModel(nn.Module):
    """An ordinary model on the workers of a partition; `kadril.nn.distribute` makes it.

    Its parameters are those of the ordinary model, the very same objects, and so are the names: a
    `state_dict` does not know of partitions.

    Attributes:
        P_x: where inputs are: one axis for each dim. An input of fewer dims lies on the first axes.
        P_y: where the result is, nested as the model returns it: this worker's line of the
            partition, with one axis for each dim. Workers beside the line hold replicas.
    """

    P_x: Partition
    P_y: Any
    _programs: dict[bool, Program]

    @uncompiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """From this worker's blocks of the inputs to its block of the result; collective.

        On ranks outside of the partition: a copy of the first input, without elements.

        Raises:
            ValueError: the partition does not fit to an input; on all workers.
            MismatchError: blocks do not fit together; on all workers.
            TypeError: other arguments than the ordinary model takes.
        """
        if not self.P_x.active:
            (first, *_) = (*args, *kwargs.values())
            if first.numel():
                raise ValueError(
                    "this rank is not in the partition of the model, and holds a tensor of shape"
                    f" {tuple(first.shape)}; give it a zero-volume tensor"
                )
            return first.clone()
        return self._programs[self.training](self, args, kwargs)

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """This worker's block of an input that it has whole (see `split`)."""
        return split(x, self.P_x)

    def gather(self, y: torch.Tensor) -> torch.Tensor:
        """The whole of the result, on each worker, as one replicated tensor (see `join`).

        For models that return one tensor; otherwise use `join` with the partitions in `P_y`.
        """
        if not isinstance(self.P_y, Partition):
            raise TypeError("the model returns several tensors; join each on its part of P_y")
        return join(y, self.P_y)

    def train(self, mode: bool = True) -> DistributedModel:
        """Set the mode, also of layers that stand for a second use of a module."""
        super().train(mode)
        for twin, module in self.__dict__.get("_second_twins", ()):
            twin.train(module.training)
        return self


class Builder:
    """Makes a `DistributedModel` from plans; collective over the partition.

    Args:
        model: the ordinary one, which is not changed.
        P_x: the partition.
    """

    def __init__(self, model: nn.Module, P_x: Partition) -> None:
        self.model = model
        self.lines = Lines(P_x)
        self.result = DistributedModel()
        self._twins: dict[tuple[str, tuple[Layout, ...]], nn.Module] = {}
        self._second_twins: list[tuple[nn.Module, nn.Module]] = []
        self._copies: dict[nn.Module, nn.Module] = {model: self.result}
        take_over(model, self.result)
        self.result.P_x = P_x

    def build(self, training: Plan, evaluation: Plan) -> DistributedModel:
        """Make the twins and the programs."""
        programs = {True: self._program(training)}
        programs[False] = programs[True] if evaluation is training else self._program(evaluation)
        self._mirror(self.model, self.result)
        # Plain attributes, so that they are no part of the state.
        object.__setattr__(self.result, "_programs", programs)
        object.__setattr__(self.result, "_second_twins", self._second_twins)
        P_y = map_nested(training.output, lambda node: self._partition_of(training.layouts[node]))
        object.__setattr__(self.result, "P_y", P_y)
        self.result.training = self.model.training
        return self.result

    def _partition_of(self, layout: Any) -> Any:
        """Where a part of the result is: lists for lists, None for what is no tensor."""
        if isinstance(layout, list):
            return [self._partition_of(each) for each in layout]
        return None if layout is None else self.lines.partition(layout)

    def _program(self, plan: Plan) -> Program:
        last_uses = find_last_uses(plan)
        entrances = [(node, self._entrance(node, layout)) for node, layout in plan.inputs]
        steps = [self._step(call, last_uses.get(call.node, [])) for call in plan.calls]
        return Program(entrances, plan.attributes, steps, plan.output)

    def _entrance(self, node: fx.Node, layout: Layout | None) -> Entrance | None:
        if layout is None:
            return None
        return Entrance(self.lines.partition(layout), f"input {str(node.target)!r}")

    def _step(self, call: PlannedCall, last_uses: list[fx.Node]) -> Step:
        decision = call.decision
        movements = {
            node: make_alignment(
                self.lines, call.have[node], want, decision.work, str(call.node.name)
            )
            for node, want in decision.wants.items()
        }
        run = self._running(call)
        return Step(call.node, run, call.args, call.kwargs, movements, last_uses)

    def _running(self, call: PlannedCall) -> Callable[..., Any]:
        """What runs; twins of modules are made once for each layout."""
        if call.node.op != "call_module":
            return call.decision.make(self.lines)
        path = str(call.node.target)
        key = (path, tuple(call.decision.wants.values()))
        if key not in self._twins:
            original = self.model.get_submodule(path)
            try:
                made: Any = call.decision.make(self.lines)
            except (TypeError, ValueError) as error:
                kind = type(original).__name__
                raise DistributeError(
                    f"cannot distribute {path} ({kind}): {error}", [(path, kind, str(error))]
                ) from error
            if not isinstance(made, nn.Module):
                return made  # type: ignore[no-any-return]
            self._twins[key] = made
            first = self._copies.setdefault(original, made)
            if first is not made and made is not original:
                # The same parameters and buffers, whatever becomes of them.
                made._parameters, made._buffers = first._parameters, first._buffers
                self._second_twins.append((made, first))
        return self._twins[key]

    def _mirror(self, module: nn.Module, mirror: nn.Module) -> None:
        """Give a copy of a module the twins of its children, where it has the children."""
        for name, child in module._modules.items():
            if child is None:
                mirror._modules[name] = None
                continue
            if child not in self._copies:
                self._copies[child] = copied = copy.copy(child)
                take_over(child, copied)
                self._mirror(child, copied)
            mirror._modules[name] = self._copies[child]


def take_over(module: nn.Module, mirror: nn.Module) -> None:
    """Give a module the parameters and buffers of another one, and no children yet."""
    mirror._parameters = dict(module._parameters)
    mirror._buffers = dict(module._buffers)
    mirror._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    mirror._modules = {}


def find_last_uses(plan: Plan) -> dict[fx.Node, list[fx.Node]]:
    """For each call, the nodes whose values nobody needs after it."""
    last: dict[fx.Node, fx.Node] = {}
    for call in plan.calls:
        for node in [*call.inputs, call.node]:
            last[node] = call.node
    for node in nodes_in(plan.output):
        last.pop(node, None)
    uses: dict[fx.Node, list[fx.Node]] = {}
    for node, user in last.items():
        uses.setdefault(user, []).append(node)
    return uses
