"""The trainers that are alive: none has the parameters of another, and worlds close them."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from kadril.errors import StateError
from kadril.sharded.ownership.agreement import raise_together
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.transport.base import Transport
from kadril.world import World

if TYPE_CHECKING:
    from kadril.sharded.trainer import POS_Trainer

__all__ = ["check_free", "keep_track", "own_transport"]

# Trainers that somebody holds.
_living: weakref.WeakSet[POS_Trainer] = weakref.WeakSet()


def own_transport(world: World) -> Transport:
    """A transport that nobody else uses, over all ranks; collective."""
    made = world.transport.split(0)
    assert made is not None  # noqa: S101 - all ranks gave a color
    return made


def keep_track(trainer: POS_Trainer, world: World, transport: Transport) -> None:
    """Give parameters back to their ranks when the world closes, and the transport with it."""
    itself = weakref.ref(trainer)

    def close() -> None:
        living = itself()
        if living is not None:
            living.let_go()
        transport.close()

    world.on_close(close)
    weakref.finalize(trainer, transport.close).atexit = False
    _living.add(trainer)


def check_free(
    transport: Transport, parameters: ParameterList, trainer: POS_Trainer | None = None
) -> None:
    """Refuse parameters that another trainer has: both would take their gradients; collective.

    Args:
        transport: of the ranks; closed where a new trainer is refused.
        parameters: wanted.
        trainer: who wants them; None for one that is being made.

    Raises:
        StateError: on all ranks. It names the parameter.
    """
    taken = find_taken(parameters, trainer)
    if taken is not None:
        gc.collect()  # a trainer that nobody holds any more may be waiting for that
        taken = find_taken(parameters, trainer)
    error = taken and StateError(
        f"parameter {taken!r} is trained by another POS_Trainer or ShardedOptimizer. Call close()"
        " of that one first, on every rank; or give each its own parameters"
    )
    try:
        raise_together(transport, "kadril.sharded", error or None, StateError)
    except StateError:
        if trainer is None:
            transport.close()
        raise


def find_taken(parameters: ParameterList, trainer: POS_Trainer | None) -> str | None:
    """The name of the first parameter that another living trainer has."""
    for other in list(_living):
        if other is trainer or other.is_closed:
            continue
        known = other._shards.parameters
        for name, tensor in zip(parameters.names, parameters.tensors, strict=True):
            if known.place_of(tensor) is not None:
                return name
    return None
