"""The groups of `kadril.partition` for communicators.

communicator                             group
of kadril's stand-in for mpi4py          its own
MPI.COMM_WORLD                           all ranks of `kadril.init()`
another of mpi4py                        a world of its own, opened on it; one for each set of
                                         ranks, since communicators come and go
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

import kadril
from kadril.compat import communicator as stand_in
from kadril.compat.communicator import Communicator
from kadril.errors import StateError
from kadril.partition import Group, world_partition
from kadril.world import World, find_identity, open_mpi

__all__ = ["group_of", "is_null", "null_communicator", "null_rank"]

_worlds: dict[tuple[int, ...], World] = {}


def loaded_mpi() -> Any:
    """Return the module `mpi4py.MPI` if the program has imported it, which would start MPI."""
    return sys.modules.get("mpi4py.MPI")


def null_communicator() -> Any:
    """Return COMM_NULL, the communicator of an inactive partition."""
    mpi = loaded_mpi()
    return stand_in.COMM_NULL if mpi is None else mpi.COMM_NULL


def null_rank() -> int:
    """Return PROC_NULL, the rank of a worker in a partition that it is not in."""
    mpi = loaded_mpi()
    return -2 if mpi is None else int(mpi.PROC_NULL)


def is_null(communicator: Any) -> bool:
    """Whether a communicator is None or COMM_NULL."""
    if communicator is None or isinstance(communicator, stand_in.Null):
        return True
    return not isinstance(communicator, Communicator) and not communicator


def group_of(communicator: Any) -> Group:
    """Return the group of a communicator; collective over it.

    Raises:
        TypeError: not a communicator.
        StateError: the ranks of this job are not those of MPI.
    """
    if isinstance(communicator, Communicator):
        return communicator.group
    mpi = loaded_mpi()
    if mpi is None or not isinstance(communicator, mpi.Comm):
        raise TypeError(
            f"a partition is made from a communicator of mpi4py, got {type(communicator).__name__}"
        )
    ranks = world_ranks(mpi, communicator)
    if ranks == tuple(range(mpi.COMM_WORLD.Get_size())):
        return group_of_all(ranks)
    if ranks not in _worlds:
        world = _worlds[ranks] = open_mpi(communicator)
        # Registered after mpi4py's own, so run before it.
        atexit.register(world.close)
    return world_partition(_worlds[ranks]).group


def group_of_all(ranks: tuple[int, ...]) -> Group:
    """Return the group of COMM_WORLD.

    Raises:
        StateError: they are not all ranks of this job.
    """
    size = None if kadril.is_initialized() else find_identity().size
    if size in (None, len(ranks)):
        kadril.init()
        size = kadril.size()
    if size != len(ranks):
        raise StateError(
            f"this job has {size} ranks by {find_identity().source}, and MPI.COMM_WORLD has"
            f" {len(ranks)}: no MPI has started them. Use `kadril run --compat distdl`, or add"
            " the directory of `kadril compat-path mpi4py` to PYTHONPATH"
        )
    return world_partition().group


def world_ranks(mpi: Any, communicator: Any) -> tuple[int, ...]:
    """Return the ranks of a communicator, as ranks of COMM_WORLD."""
    own, everyone = communicator.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = mpi.Group.Translate_ranks(own, list(range(own.Get_size())), everyone)
    own.Free()
    everyone.Free()
    return tuple(int(rank) for rank in ranks)
