"""A transport of its own, so that calls of one trainer or save never meet those of another."""

from __future__ import annotations

from kadril.transport.alone import group_of_one
from kadril.transport.base import Transport
from kadril.world import World
from kadril.world.membership import find_membership

__all__ = ["dedicated_transport"]


def dedicated_transport(world: World) -> Transport:
    """Make a transport over all ranks of a world that nobody else uses; collective.

    In a process that has come to an elastic job later than others it is of this rank alone, until
    the state of the job is there: the others train, and do not make what this program makes at its
    start.

    The caller closes it.
    """
    membership = find_membership()
    if membership is not None and membership.is_joining:
        return group_of_one(world.rank)
    made = world.transport.split(0)
    assert made is not None  # noqa: S101 - all ranks gave a color
    return made
