"""Tensors that are tracked while a model is traced, and calls that are tried on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kadril.nn.distribution.nested import leaves, map_leaves
from kadril.nn.distribution.side_effects import Observer, storage_of
from kadril.nn.distribution.tracing.canonical_call import CanonicalCall

__all__ = ["Attempt", "TrackedTensor", "as_given", "as_meta"]


def as_meta(value: Any) -> Any:
    """Return a tensor on the meta device, with a storage of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_like(value, device="meta", requires_grad=False)


def as_given(result: Any, operands: Sequence[TrackedTensor]) -> Any:
    """Return a result, with the operands themselves instead of their stand-ins."""
    stood_for = {}
    for known in operands:
        stood_for[id(known.value)] = stood_for[id(known.meta)] = known.tensor
    if not any(id(each) in stood_for for each in leaves(result)):
        return result
    return map_leaves(result, lambda each: stood_for.get(id(each), each))


class TrackedTensor:
    """Tensor that is followed while a model is traced, with what is known about it.

    Attributes:
        tensor: the very object; kept, so that no other one gets its identity.
        node: that gives its present value.
        value: what calls are tried on in its place, on the meta device where that is not known.
        memory: identity of the memory that it is in.
        is_state: whether it is a parameter or buffer of the model, which keeps what is written.
        is_outer: whether it was there before the model was called.
        view: the tensor and the index that it was taken by, where it was.
        writers: tensors through which its memory was changed since its node gave it.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        node: fx.Node,
        value: torch.Tensor,
        *,
        memory: int | None = None,
        is_state: bool = False,
        is_outer: bool = False,
    ) -> None:
        self.tensor = tensor
        self.node = node
        self.value = value
        self.memory = storage_of(value) if memory is None else memory
        self.is_state = is_state
        self.is_outer = is_outer
        self.view: tuple[TrackedTensor, Any] | None = None
        self.writers: list[TrackedTensor] = []
        self._meta: torch.Tensor | None = None

    @property
    def has_value(self) -> bool:
        """Whether calls can be tried on its value."""
        return not self.value.is_meta and not self.writers

    @property
    def meta(self) -> torch.Tensor:
        """A stand-in without its value."""
        if self.value.is_meta:
            return self.value
        if self._meta is None:
            self._meta = as_meta(self.value)
        return self._meta


class Attempt:
    """A call that is tried on stand-ins for its operands.

    Args:
        call: as it was made.
        run: from arguments to a result.
        operands: the tensors among its arguments.
    """

    def __init__(
        self, call: CanonicalCall, run: Callable[..., Any], operands: Sequence[TrackedTensor]
    ) -> None:
        self.call = call
        self.run = run
        self.operands = {id(known.tensor): known for known in operands}

    def __call__(self, is_meta: bool) -> tuple[Any, Observer]:
        """Return its result and its side effects.

        Args:
            is_meta: whether to try it without values.
        """
        device = torch.device("meta" if is_meta else "cpu")

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                known = self.operands[id(value)]
                return known.meta if is_meta else known.value
            return device if isinstance(value, torch.device) else value

        args, kwargs = map_leaves((self.call.args, self.call.kwargs), stand_in)
        with Observer() as observer:
            if self.operands or "device" in kwargs:
                return self.run(args, kwargs), observer
            with device:
                return self.run(args, kwargs), observer
