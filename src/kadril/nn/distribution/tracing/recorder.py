"""Records the calls of torch while a model runs, once, on tensors without memory.

    model(x)   x on the meta device, of the global shape
      |  every function and method of torch, and every module that has a rule
      v
    graph      one node for each tensor; shapes are plain numbers

So `x.shape`, tuples of tensors, loops over them and branches on sizes are ordinary Python, and the
graph belongs to these sizes. Tensors that are made in `forward` (`torch.arange(4)`) are calls
without operands. Small ones keep their values, so that Python may read them. The values of inputs
and parameters are not known, and a model that asks for one is refused.

Each tensor is tracked by the call that made it. One that was made by no recorded call (but by a
compiled function, or by an `autograd.Function`, whose backward pass would be lost) is refused.
Writes are recorded as calls that give the tensor anew; another tensor that shares the memory then
has an old value, and using it is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from kadril.nn.distribution.module_mode import in_mode
from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.rules.call import DistributeError
from kadril.nn.distribution.side_effects import Observer, storage_of
from kadril.nn.distribution.tracing.canonical_call import (
    META,
    CanonicalCall,
    canonical_call,
    name_of,
)
from kadril.nn.distribution.tracing.tracked_tensor import Attempt, TrackedTensor, as_given, as_meta

__all__ = ["Recorder"]

# Tensors made in `forward` keep their values up to this many elements.
MAX_VALUES = 1 << 16

# What gives numbers, and not tensors. The others fail on tensors without values by themselves.
ASKS_FOR_VALUES = """
    __bool__ __int__ __float__ __complex__ __index__ __contains__ __array__ __dlpack__ item tolist
    numpy allclose equal is_nonzero
"""


class Recorder(TorchFunctionMode):
    """Notes the calls of torch.

    Args:
        attributes: parameters and buffers by identity: their path, and what stands for them.
        device: of the tensors that the model will get.

    Attributes:
        graph: the calls.
        shapes: what each of them gives: tensors on the meta device, or lists of them.
        constants: tensors that were there before, by their node.
        owners: paths and classes of the modules of torch that are being traced into.
    """

    def __init__(
        self, attributes: Mapping[int, tuple[str, torch.Tensor]], device: torch.device
    ) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.shapes: dict[fx.Node, Any] = {}
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.owners: list[tuple[str, str]] = []
        self._attributes = attributes
        self._device = device
        self._known: dict[int, TrackedTensor] = {}
        # From the memory of what stands for a tensor to that of the tensor.
        self._memories: dict[int, int] = {}
        self._is_grad = torch.is_grad_enabled()
        self._is_autocast = torch.is_autocast_enabled(device.type)
        self._is_paused = False

    def placeholder(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor without memory for an input."""
        node = self.graph.placeholder(name)
        meta: torch.Tensor = as_meta(like)
        if meta.is_floating_point() or meta.is_complex():
            # A result, not a leaf, since it may be written into; and with gradients, since a
            # model has to be seen to have a backward pass of its own.
            meta = meta.requires_grad_().clone()
        self.shapes[node] = as_meta(like)
        self._know(TrackedTensor(meta, node, meta))
        return meta

    def node_of(self, tensor: torch.Tensor, what: str) -> fx.Node:
        """Return the node that gives the value of a tensor.

        Raises:
            DistributeError: there is none.
        """
        known = self._look_up(tensor, what)
        if known.writers:
            self._refuse(
                what,
                "it uses a tensor after another one that shares its memory was written into (in"
                " place, or by assignment to a part); clone one of them first",
            )
        return known.node

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one call of torch."""
        named = dict(kwargs or {})
        if self._is_paused:
            return func(*args, **named)
        if isinstance(named.get("device", 0), (str, type(None))):
            where = named.pop("device")
            named.update({} if where is None else {"device": torch.device(where)})
        name = name_of(func)
        if name == "get device":
            return self._device
        if name in ("get is_cpu", "get is_cuda", "get is_meta"):
            return name == f"get is_{self._device.type}"
        if name.startswith("set "):
            self._refuse(name, "it sets an attribute of a tensor")
        call = canonical_call(func, args, named)
        return self._record(call, call.run, str(name), asks_for=str(name))

    def call_module(
        self,
        path: str,
        module: nn.Module,
        forward: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Record the call of a module, as one; its state is on the meta device already."""

        def run(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            # Layers give the same shapes in both modes; in evaluation none asks for a larger
            # batch, and none draws.
            with in_mode(module, False):
                result = forward(*args, **kwargs)
            is_given = any(result is each for each in leaves((args, kwargs)))
            if is_given and not getattr(module, "inplace", False):
                # A dropout gives its input here, and something else in training.
                return result.view_as(result)
            return result

        call = CanonicalCall("call_module", path, args, kwargs)
        self._is_paused = True
        try:
            return self._record(call, run, path)
        finally:
            self._is_paused = False

    def _record(
        self, call: CanonicalCall, run: Callable[..., Any], what: str, *, asks_for: str = ""
    ) -> Any:
        """Try a call, and note it where it gives tensors, or changes one."""
        args, kwargs = call.args, call.kwargs
        given = [each for each in leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        operands = [self._look_up(each, what) for each in given]
        try:
            result, observer = self._try(call, run, operands, asks_for)
        except Exception as error:
            raise self._refusal(what, f"it fails on the example: {error}") from error
        result = as_given(result, operands)
        made = [each for each in leaves(result) if isinstance(each, torch.Tensor)]
        target = self._target_of_write(operands, observer.written, what)
        if not made and target is None:
            return result
        if torch.is_autocast_enabled(self._device.type) != self._is_autocast:
            self._refuse(what, "autocast is switched on or off in `forward`; do that around it")
        self._settle_assignment(call.target, args)
        node = self.graph.create_node(
            call.op, call.target, self._noted(args, what), self._noted(kwargs, what)
        )
        is_grad = torch.is_grad_enabled()
        node.meta.update(
            owner=self.owners[-1] if self.owners else None,
            draws=observer.draws,
            written=None if target is None else target.node,
            is_state=target is not None and target.is_state,
            grad=None if is_grad == self._is_grad else is_grad,
        )
        if target is not None:
            self._write(target, node, observer.written)
        if not made:
            self.shapes[node] = as_meta(target.meta)
            return result
        self.shapes[node] = map_leaves(result, as_meta)
        self._bind(result, node)
        if call.target is operator.getitem and isinstance(result, torch.Tensor):
            self._known[id(result)].view = (operands[0], args[1])
        return result

    def _try(
        self,
        call: CanonicalCall,
        run: Callable[..., Any],
        operands: Sequence[TrackedTensor],
        what: str,
    ) -> tuple[Any, Observer]:
        """Call with stand-ins for the operands, with their values where those are known."""
        attempt = Attempt(call, run, operands)
        is_grad = torch.is_grad_enabled()
        has_values = all(known.has_value for known in operands)
        if what in ASKS_FOR_VALUES.split():
            if not has_values:
                raise ValueError(
                    "it reads the value of a tensor; what a model does must not depend on values"
                )
            return attempt(False)
        try:
            result, observer = attempt(True)
        except Exception:
            # Of tensors with values, the shape of a result may depend on them.
            if not has_values or not operands:
                raise
            return attempt(False)
        if torch.is_grad_enabled() != is_grad or not has_values or observer.draws:
            return result, observer  # what switches the recording of graphs does it once
        sizes = [each.numel() for each in leaves(result) if isinstance(each, torch.Tensor)]
        is_small = max(sizes, default=0) <= MAX_VALUES
        return attempt(False) if is_small and (sizes or operands) else (result, observer)

    def _target_of_write(
        self, operands: Sequence[TrackedTensor], written: set[int], what: str
    ) -> Any:
        """Return the tensor that a call changes; None where it changes none.

        Raises:
            DistributeError: it is not its first operand alone, or is in memory that was there
                before the model was called, and is not all of it.
        """
        changed = [known for known in operands if {known.memory, storage_of(known.meta)} & written]
        if not changed:
            return None
        target = changed[0]
        if target is not operands[0] or any(each.memory != target.memory for each in changed):
            self._refuse(what, "it writes into another tensor than its first one (`out=`)")
        for known in self._known.values():
            is_other = known.memory == target.memory and known is not target
            if (is_other and known.is_outer) or (target.is_outer and not target.is_state):
                self._refuse(
                    what,
                    "it writes into a tensor that was there before `forward` was called; only"
                    " parameters and buffers can be written into, as a whole",
                )
        return target

    def _write(self, target: TrackedTensor, node: fx.Node, written: set[int]) -> None:
        """Note that a tensor has a new value, and that those that share its memory have not."""
        target.node = node
        if storage_of(target.value) not in written:
            target.value = target.meta  # what was written is not known
        for known in self._known.values():
            if known.memory == target.memory and known is not target:
                known.writers.append(target)

    def _settle_assignment(self, target: Any, args: Sequence[Any]) -> None:
        """Make all of `y` known again after `y[i] += z`, that is, `v = y[i]; v += z; y[i] = v`."""
        if target is not operator.setitem or not isinstance(args[2], torch.Tensor):
            return
        whole, part = self._known[id(args[0])], self._known[id(args[2])]
        if part.view is None or part.view[0] is not whole or part.writers:
            return
        if repr(part.view[1]) == repr(args[1]) and all(each is part for each in whole.writers):
            whole.writers.clear()

    def _bind(self, result: Any, node: fx.Node) -> None:
        """Note what gives the tensors of a result, however they are nested."""
        if isinstance(result, torch.Tensor):
            known = self._known.get(id(result))
            if known is not None:
                known.node = node
                return
            memory = self._memories.get(storage_of(result))
            self._know(TrackedTensor(result, node, result, memory=memory))
        elif isinstance(result, (list, tuple, dict)):
            items = result.items() if isinstance(result, dict) else enumerate(result)
            for place, each in items:
                if not any(isinstance(leaf, torch.Tensor) for leaf in leaves(each)):
                    continue
                item = self.graph.call_function(operator.getitem, (node, place))
                item.meta["is_item"] = True
                self.shapes[item] = map_leaves(each, as_meta)
                self._bind(each, item)

    def _know(self, known: TrackedTensor) -> TrackedTensor:
        self._known[id(known.tensor)] = known
        self._memories[storage_of(known.meta)] = known.memory
        self._memories[storage_of(known.value)] = known.memory
        return known

    def _look_up(self, tensor: torch.Tensor, what: str) -> TrackedTensor:
        """Return what is known about a tensor; begin to track one that was there before.

        Raises:
            DistributeError: nothing is.
        """
        if isinstance(tensor.grad_fn, BackwardCFunction):
            name = type(tensor.grad_fn).__name__.removesuffix("Backward")
            self._refuse(
                what,
                f"its operand is the result of {name}, an autograd.Function, whose backward pass"
                " would be lost (of a checkpoint: give use_reentrant=False)",
            )
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        if id(tensor) in self._attributes:
            path, meta = self._attributes[id(tensor)]
            node = self.graph.create_node("get_attr", path)
            self.shapes[node] = as_meta(meta)
            known = TrackedTensor(tensor, node, meta, is_state=True, is_outer=True)
            known.memory = self._memories.get(storage_of(meta), known.memory)
            return self._know(known)
        if tensor.is_meta:
            self._refuse(
                what,
                "its operand was made by something that cannot be traced into, such as a compiled"
                " or scripted function",
            )
        if tensor.requires_grad:
            self._refuse(what, "it uses a tensor with gradients that is no parameter of the model")
        node = self.graph.create_node("get_attr", f"constant:{len(self.constants)}")
        self.constants[node] = tensor
        self.shapes[node] = as_meta(tensor)
        is_small = tensor.numel() <= MAX_VALUES
        value = tensor.detach().cpu().clone() if is_small else as_meta(tensor)
        return self._know(TrackedTensor(tensor, node, value, is_outer=True))

    def _noted(self, value: Any, what: str) -> Any:
        """Return arguments, with nodes for tensors."""

        def note(each: Any) -> Any:
            if isinstance(each, torch.Tensor):
                return self.node_of(each, what)
            return self._device if each == META else each

        return map_leaves(value, note)

    def _refuse(self, what: str, why: str) -> NoReturn:
        raise self._refusal(what, why)

    def _refusal(self, what: str, why: str) -> DistributeError:
        path, kind = self.owners[-1] if self.owners else (what, what)
        where = f"{path} ({kind}): {what}" if self.owners else what
        return DistributeError(f"it cannot be traced, at {where}: {why}", [(path, kind, why)])
