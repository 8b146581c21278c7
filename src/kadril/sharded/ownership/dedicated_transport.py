"""A transport of its own, so that calls of one trainer or save never meet those of another."""

from __future__ import annotations

from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["dedicated_transport"]


def dedicated_transport(world: World) -> Transport:
    """Make a transport over all ranks of a world that nobody else uses; collective.

    The caller closes it.
    """
    made = world.transport.split(0)
    assert made is not None  # noqa: S101 - all ranks gave a color
    return made
