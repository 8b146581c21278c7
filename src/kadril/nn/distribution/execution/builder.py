"""Builds the twins of modules, and the programs that call them; collective over the partition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from kadril.nn.distribution.execution.input_blocks import InputBalancer
from kadril.nn.distribution.execution.model import (
    MAX_PROGRAMS,
    DistributedModel,
    ProgramRequest,
    tensors_by_name,
)
from kadril.nn.distribution.execution.program import Program, Step
from kadril.nn.distribution.layout import Subgrids, block_shape, layout_on
from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.planning.alignment import make_alignment
from kadril.nn.distribution.planning.call_plan import CallPlan, PlannedCall
from kadril.nn.distribution.rules.call import DistributeError
from kadril.nn.distribution.tracing.instrument import number_places
from kadril.nn.distribution.tracing.trace import Traced
from kadril.ops.structure import PlanCache
from kadril.partition import Partition

__all__ = ["Builder"]


class Builder:
    """Makes a `DistributedModel`, and its programs as they are needed.

    Twins of modules are made once for each layout, and shared by all programs.

    Args:
        model: the ordinary one, which is not changed.
        P_x: the partition.
    """

    def __init__(self, model: nn.Module, P_x: Partition) -> None:
        self.model = model
        self.subgrids = Subgrids(P_x)
        self.result = DistributedModel()
        self._twins: dict[tuple[Any, ...], nn.Module] = {}
        self._second_twins: list[tuple[nn.Module, nn.Module]] = []
        self._copies: dict[nn.Module, nn.Module] = {model: self.result}
        self._programs = PlanCache(MAX_PROGRAMS)
        take_over(model, self.result)
        self.result.P_x = P_x

    def finish(
        self, make_program: Callable[[ProgramRequest], Program], examples: Sequence[Any], P_y: Any
    ) -> DistributedModel:
        """Return the model, when the programs for its example have been made.

        Args:
            make_program: for other inputs.
            examples: the arguments that it was made for.
            P_y: where the result of the example is.
        """
        names = list(inspect.signature(self.model.forward).parameters)
        balancers = {}
        for name, each in tensors_by_name(names, examples, {}):
            P = self.subgrids.partition(layout_on(self.subgrids.P.shape, each.dim()))
            balancers[name] = InputBalancer(P, name, tuple(each.shape))
        self._mirror(self.model, self.result)
        paths = [path for path, _ in self.model.named_modules()]
        # Past `nn.Module.__setattr__`, so that none of it is a part of the state.
        self.result.__dict__.update(
            _make_program=make_program,
            _programs=PlanCache(MAX_PROGRAMS),
            _twins_by_path={path: self.result.get_submodule(path) for path in paths},
            _second_twins=self._second_twins,
            _balancers=balancers,
            _names=names,
            _numbers=number_places(self.model),
            P_y=P_y,
        )
        for path, module in self.model.named_modules():
            self.result.get_submodule(path).training = module.training
        return self.result

    def program(self, traced: Traced, plan: CallPlan) -> Program:
        """Return the program of a plan; the same one for plans of equal traces."""
        return self._programs.get(traced.text, lambda: self._program(traced, plan))

    def _program(self, traced: Traced, plan: CallPlan) -> Program:
        last_uses = find_last_uses(plan)
        steps = [self._step(plan, call, last_uses.get(call.node, [])) for call in plan.calls]
        used = [node for node in plan.attributes if node in traced.constants]
        constants = {node: traced.constants[node] for node in used}
        attributes = [node for node in plan.attributes if node not in constants]
        P_y = map_leaves(plan.output, lambda each: self._partition_of(plan, each))
        return Program(plan.inputs, attributes, constants, steps, plan.output, P_y)

    def _partition_of(self, plan: CallPlan, part: Any) -> Any:
        """Return where a part of the result lies; None for what is not a tensor."""
        return self.subgrids.partition(plan.layouts[part]) if isinstance(part, fx.Node) else None

    def _step(self, plan: CallPlan, call: PlannedCall, last_uses: list[fx.Node]) -> Step:
        node, decision = call.node, call.decision
        movements = {
            each: made
            for each, want in decision.wants.items()
            if (
                made := make_alignment(
                    self.subgrids, call.have[each], want, decision.work, node.name
                )
            )
        }
        written = None if node.meta.get("is_state") else node.meta.get("written")
        return Step(
            node,
            self._block_function(call),
            call.args,
            call.kwargs,
            movements,
            last_uses,
            self._blocks(plan.layouts[node], plan.shapes[node]),
            written,
            node.meta.get("grad"),
        )

    def _blocks(self, layout: Any, shape: Any) -> Any:
        """Return the shapes of this worker's blocks of what a call gives."""
        if isinstance(shape, torch.Tensor):
            P = self.subgrids.P
            return block_shape(layout, shape.shape, P) if P.active else tuple(shape.shape)
        if isinstance(shape, dict):
            return {name: self._blocks(layout[name], each) for name, each in shape.items()}
        if isinstance(shape, (list, tuple)):
            return [self._blocks(layout[place], each) for place, each in enumerate(shape)]
        return None

    def _block_function(self, call: PlannedCall) -> Callable[..., Any]:
        """Return the function or module to run; twins of modules are made once for each layout."""
        if call.node.op != "call_module":
            return call.decision.make(self.subgrids)
        path = str(call.node.target)
        key = (path, *call.decision.wants.values(), repr(call.decision.gives))
        if key not in self._twins:
            original = self.model.get_submodule(path)
            try:
                made: Any = call.decision.make(self.subgrids)
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
                made.train(first.training)
                self._second_twins.append((made, first))
        return self._twins[key]

    def _mirror(self, module: nn.Module, mirror: nn.Module) -> None:
        """Give a copy of a module the twins of its children."""
        for name, child in module._modules.items():
            if child is None:
                mirror._modules[name] = None
                continue
            if child not in self._copies:
                self._copies[child] = copied = shallow_copy(child)
                take_over(child, copied)
                self._mirror(child, copied)
            mirror._modules[name] = self._copies[child]


def shallow_copy(module: nn.Module) -> nn.Module:
    """Return another module with the same attributes; `copy.copy` refuses parametrized ones."""
    copied = type(module).__new__(type(module))
    vars(copied).update(vars(module))
    return copied


def take_over(module: nn.Module, mirror: nn.Module) -> None:
    """Give a module the parameters and buffers of another one, and no children yet."""
    mirror._parameters = dict(module._parameters)
    mirror._buffers = dict(module._buffers)
    mirror._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    mirror._modules = {}


def find_last_uses(plan: CallPlan) -> dict[fx.Node, list[fx.Node]]:
    """Return, for each call, the nodes whose values are not needed after it."""
    last: dict[fx.Node, fx.Node] = {}
    for call in plan.calls:
        for node in [*call.inputs, call.node]:
            last[node] = call.node
    for node in leaves(plan.output):
        last.pop(node, None)
    uses: dict[fx.Node, list[fx.Node]] = {}
    for node, user in last.items():
        uses.setdefault(user, []).append(node)
    return uses
