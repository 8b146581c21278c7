"""Partitions of the package named `distdl`, for its tests.

Imported by its long name, so that `import distdl` stays what it is in this process.
"""

# ruff: noqa: N803, N806 - P: a partition
from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kadril.compat.communicator import Communicator
from kadril.compat.distdl_path.distdl import nn as dnn
from kadril.compat.distdl_path.distdl.backends.mpi.partition import (
    MPICartesianPartition,
    MPIPartition,
)
from kadril.compat.distdl_path.distdl.utilities.torch import zero_volume_tensor
from kadril.partition import Partition, world_partition
from kadril.world import World

__all__ = ["arranged", "beneath", "everyone", "gathered", "scattered"]


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


def scattered(P_world: MPIPartition, P_x: MPICartesianPartition, x: torch.Tensor) -> torch.Tensor:
    """Return this worker's block of a tensor that rank 0 has."""
    P_0 = arranged(P_world, [1] * P_x.dim, [0])
    with torch.no_grad():
        return dnn.Repartition(P_0, P_x)(x if P_0.active else zero_volume_tensor(dtype=x.dtype))


def gathered(P_world: MPIPartition, P_x: MPICartesianPartition, x: torch.Tensor) -> torch.Tensor:
    """Return, on rank 0, the tensor that workers have blocks of."""
    P_0 = arranged(P_world, [1] * P_x.dim, [0])
    with torch.no_grad():
        return dnn.Repartition(P_x, P_0)(x.detach())
