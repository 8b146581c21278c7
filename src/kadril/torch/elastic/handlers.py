"""Handlers: how a model, an optimizer or a sampler is saved, restored, and brought to all ranks.

A program may put handlers of its own classes into the registry.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch

from kadril.torch.elastic.sampler import ElasticSampler
from kadril.torch.objects import broadcast_object
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


class StateHandler:
    """Takes care of one value of a `TorchState`.

    Args:
        value: with `state_dict` and `load_state_dict`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def set_value(self, value: Any) -> None:
        """Take care of another value."""
        self.value = value
        self.save()

    # Whether `sync` is needed also where all ranks have the state, as each has another part of it.
    always_syncs = False

    def gather(self) -> None:
        """Learn from the other ranks what has to be saved; collective."""

    def detach(self) -> None:
        """Stop sharing memory with the other ranks, of which one is lost."""

    def save(self) -> None:
        """Remember the value's state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to what was saved."""
        # A copy: some classes keep the tensors they are given, and would change what is saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Take over the state of rank 0, and save it; collective."""
        self.value.load_state_dict(
            broadcast_object(self.value.state_dict(), name=self.name, allow_pickle=True)
        )
        self.save()

    name = "elastic.state"


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
