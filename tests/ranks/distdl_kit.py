"""Partitions of the package named `distdl`, for its tests.

Imported by its long name, so that `import distdl` stays what it is in this process.
"""

# ruff: noqa: N803 - P: a partition
from __future__ import annotations

import math
from collections.abc import Sequence

from kadril.compat.communicator import Communicator
from kadril.compat.distdl_path.distdl.backends.mpi.partition import (
    MPICartesianPartition,
    MPIPartition,
)
from kadril.partition import Partition, world_partition
from kadril.world import World

__all__ = ["arranged", "beneath", "everyone"]


def everyone(world: World) -> MPIPartition:
    """Return the partition of all ranks, as a program makes it of MPI.COMM_WORLD."""
    return MPIPartition(Communicator(lambda: world_partition(world).group))


def arranged(
    P: MPIPartition, shape: Sequence[int], members: Sequence[int] | None = None
) -> MPICartesianPartition:
    """Return a Cartesian partition of some workers of another; of the first ones where None."""
    chosen = range(math.prod(shape)) if members is None else members
    return P.create_partition_inclusive(chosen).create_cartesian_topology_partition(shape)


def beneath(P: MPIPartition) -> Partition:
    """Return the same workers as a partition of `kadril.partition`."""
    assert P._core is not None
    return P._core
