"""Handlers: how a model, an optimizer or a sampler is saved, restored, and brought to all ranks.

A program may put handlers of its own classes into the registry.
"""

from __future__ import annotations

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


class SamplerStateHandler(StateHandler):
    """Takes care of an `ElasticSampler`."""

    name = "elastic.sampler"


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Pairs of a class and the handler of its instances; the first that fits is taken."""
    return list(_registry)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace the registry, for states that are made afterwards."""
    _registry[:] = registry


def handler_of(value: Any) -> StateHandler | None:
    """A handler for a value, or None for a plain one."""
    if "kadril.sharded" in sys.modules:
        from kadril.sharded.sharded_optimizer import trainer_of
        from kadril.torch.elastic.sharded_handler import ShardedStateHandler

        if trainer_of(value) is not None:
            return ShardedStateHandler(value)
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
