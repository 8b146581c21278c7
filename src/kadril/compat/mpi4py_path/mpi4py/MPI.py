"""The part of `mpi4py.MPI` that programs for DistDL use.

COMM_WORLD      all ranks of the job: those of `kadril.init()`, which its first use calls
COMM_SELF       this rank alone
Split, Dup      communicators of some of them
"""  # noqa: N999 - the name is mpi4py's

from __future__ import annotations

import os
import platform
import time
from typing import NoReturn

import kadril
from kadril.compat.array_buffer import IN_PLACE
from kadril.compat.communicator import COMM_NULL, GROUP_NULL, UNDEFINED, Communicator
from kadril.compat.reduction_op import OPS, Op
from kadril.partition import Group, world_partition
from kadril.transport.alone import group_of_one
from kadril.world import find_identity

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOR",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_WORLD",
    "GROUP_NULL",
    "IN_PLACE",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "SUM",
    "UNDEFINED",
    "Comm",
    "Finalize",
    "Get_processor_name",
    "Get_version",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Op",
    "Wtick",
    "Wtime",
]

identity = find_identity()
if identity.rendezvous == "mpi":
    raise ImportError(
        f"{identity.source} started this process, and `import mpi4py` finds kadril's stand-in,"
        " which is for ranks without MPI. Leave its directory out of PYTHONPATH"
        " (`kadril compat-path distdl` names that of distdl alone), and pip install mpi4py"
    )

PROC_NULL = -2
ANY_SOURCE = -1
ANY_TAG = -1

SUM = OPS["SUM"]
PROD = OPS["PROD"]
MIN = OPS["MIN"]
MAX = OPS["MAX"]
BAND = OPS["BAND"]
BOR = OPS["BOR"]

Comm = Communicator
Intracomm = Communicator


def all_ranks() -> Group:
    """Return all ranks of the job, connected at the first call."""
    kadril.init()
    return world_partition().group


def only_me() -> Group:
    """Return a group of this rank alone."""
    return Group(group_of_one(kadril.init().rank))


COMM_WORLD = Communicator(all_ranks)
COMM_SELF = Communicator(only_me)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"kadril stands in for mpi4py here, since no MPI has started this process, and has no"
        f" MPI.{name}; there are {', '.join(__all__)}. Start the program with mpirun to have"
        " mpi4py itself"
    )


# ruff: noqa: N802 - the names are mpi4py's
def Wtime() -> float:
    """Return seconds since an arbitrary moment."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of `Wtime` in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Return the name of this host."""
    return platform.node() or os.uname().nodename


def Get_version() -> tuple[int, int]:
    """Return (0, 0): no version of the MPI standard is implemented."""
    return (0, 0)


def Is_initialized() -> bool:
    """Return True: ranks connect at the first use."""
    return True


def Is_finalized() -> bool:
    """Return False: a new world is opened at the next use."""
    return False


def Finalize() -> None:
    """Leave the world."""
    kadril.shutdown()
