"""Handlers: how a model, an optimizer or a sampler is saved, restored, and brought to all ranks.

A program may put handlers of its own classes into the registry. What is in none of the classes, but
has `state_dict` and `load_state_dict`, is saved and restored by these.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from kadril.torch.elastic.sampler import ElasticSampler
from kadril.torch.elastic.state_handler import StateHandler
from kadril.torch.optimizer_state import broadcast_optimizer_state
from kadril.torch.parameters import broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "get_handler_registry",
    "set_handler_registry",
]


class ModelStateHandler(StateHandler):
    """Takes care of a module."""

    def sync(self) -> None:
        """Take over parameters and buffers of rank 0, in place; collective."""
        state = self.value.state_dict()
        broadcast_parameters(state, root_rank=0)
        # In place already, except for entries that are not tensors.
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            self.value.load_state_dict(state)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Takes care of an optimizer, wrapped or plain."""

    def sync(self) -> None:
        """Take over state and options of rank 0; collective."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class GradScalerStateHandler(StateHandler):
    """Takes care of a `torch.amp.GradScaler`."""

    def restore(self) -> None:
        """Go back to what was saved, and to before `unscale_()` of the step that is given up."""
        with contextlib.suppress(AssertionError):  # it has not scaled anything yet
            self.value.update(self.value.get_scale())
        super().restore()


class SamplerStateHandler(StateHandler):
    """Takes care of an `ElasticSampler`."""

    name = "elastic.sampler"


Registry = list[tuple[type, type[StateHandler]]]


class _Holder:
    registry: Registry = [  # noqa: RUF012 - replaced as a whole
        (torch.nn.Module, ModelStateHandler),
        (torch.optim.Optimizer, OptimizerStateHandler),
        (torch.amp.GradScaler, GradScalerStateHandler),
        (ElasticSampler, SamplerStateHandler),
    ]


def get_handler_registry() -> Registry:
    """Pairs of a class and the handler of its instances; the first that fits is taken.

    It is the list itself: what a program adds to it counts for states that are made afterwards.
    """
    return _Holder.registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the registry, for states that are made afterwards."""
    _Holder.registry = registry


def handler_of(value: Any) -> StateHandler | None:
    """A handler for a value, or None for a plain one."""
    if "kadril.sharded" in sys.modules:
        from kadril.sharded.sharded_optimizer import trainer_of
        from kadril.torch.elastic.sharded_handler import ShardedStateHandler

        if trainer_of(value) is not None:
            return ShardedStateHandler(value)
    for kind, handler in get_handler_registry():
        if isinstance(value, kind):
            return handler(value)
    # A learning rate scheduler, say: a copy of it would belong to a copy of its optimizer.
    has_state = callable(getattr(value, "state_dict", None))
    is_stateful = has_state and callable(getattr(value, "load_state_dict", None))
    return StateHandler(value) if is_stateful and not isinstance(value, type) else None
