"""The trainers that are alive: no two have the same parameter, and a world closes its trainers."""

from __future__ import annotations

import gc
import weakref
from typing import Protocol

from kadril.errors import StateError
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.sharded.ownership.shards import Shards
from kadril.transport.agreement import raise_on_all
from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["LiveTrainer", "check_untrained", "register_trainer"]


class LiveTrainer(Protocol):
    """A trainer, as far as it concerns others: it takes the gradients of its parameters."""

    @property
    def is_closed(self) -> bool:
        """Whether it has let go of its parameters."""
        ...

    @property
    def shards(self) -> Shards:
        """Parameters of the trainer, shared out among the ranks."""
        ...

    def let_go(self) -> None:
        """Let go of the parameters, without the other ranks."""
        ...


# Trainers that are referenced from somewhere.
_trainers: weakref.WeakSet[LiveTrainer] = weakref.WeakSet()


def register_trainer(trainer: LiveTrainer, world: World, transport: Transport) -> None:
    """Remember a trainer; when the world closes, release its parameters and its transport."""
    reference = weakref.ref(trainer)

    def close() -> None:
        registered = reference()
        if registered is not None:
            registered.let_go()
        transport.close()

    world.on_close(close)
    weakref.finalize(trainer, transport.close).atexit = False
    _trainers.add(trainer)


def check_untrained(
    transport: Transport, parameters: ParameterList, trainer: LiveTrainer | None = None
) -> None:
    """Refuse parameters of another trainer: both would take their gradients; collective.

    Args:
        transport: transport over the ranks.
        parameters: the parameters to train.
        trainer: the trainer that is to train them; None for one under construction.

    Raises:
        StateError: on all ranks. It names the parameter.
    """
    taken = find_trained(parameters, trainer)
    if taken is not None:
        gc.collect()  # an unreferenced trainer may be waiting for that
        taken = find_trained(parameters, trainer)
    error = None
    if taken is not None:
        error = StateError(
            f"parameter {taken!r} is trained by another POS_Trainer or ShardedOptimizer. Call"
            " close() of that one first, on every rank; or give each its own parameters"
        )
    raise_on_all(transport, "kadril.sharded", error, StateError)


def find_trained(parameters: ParameterList, trainer: LiveTrainer | None) -> str | None:
    """Return the name of the first parameter that another live trainer has."""
    for other in list(_trainers):
        if other is trainer or other.is_closed:
            continue
        known = other.shards.parameters
        for name, tensor in zip(parameters.names, parameters.tensors, strict=True):
            if known.place_of(tensor) is not None:
                return name
    return None
