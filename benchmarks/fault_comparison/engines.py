"""The engines that run the scenarios: kadril on shared memory, gloo of torch, and MPI."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_comparison.scenarios import SCENARIOS

__all__ = ["PATIENCE", "gloo_rank", "kadril_rank", "mpi_rank"]

# How long each engine waits for a rank that does not come, where it can be told.
PATIENCE = 3.0


class KadrilEngine:
    """A world of kadril."""

    def __init__(self, world: Any) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size

    def sum_(self, array: Any, op: str = "sum") -> None:
        """Reduce an array in place."""
        self.world.transport.allreduce(array, op)

    def broadcast_(self, array: Any) -> None:
        """Copy rank 0's array to all."""
        self.world.transport.broadcast(array, 0)


class GlooEngine:
    """A process group of torch."""

    def __init__(self, rank: int, size: int, file: str) -> None:
        import torch.distributed as dist

        self.rank, self.size, self.dist = rank, size, dist
        timeout = datetime.timedelta(seconds=PATIENCE)
        dist.init_process_group(
            "gloo", store=dist.FileStore(file, size), rank=rank, world_size=size, timeout=timeout
        )

    def sum_(self, array: Any, op: str = "sum") -> None:
        """Reduce an array in place."""
        import torch

        ops = {"sum": self.dist.ReduceOp.SUM, "max": self.dist.ReduceOp.MAX}
        self.dist.all_reduce(torch.from_numpy(array), ops[op])

    def broadcast_(self, array: Any) -> None:
        """Copy rank 0's array to all."""
        import torch

        self.dist.broadcast(torch.from_numpy(array), 0)


class MpiEngine:
    """The world of MPI."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm, self.mpi = MPI.COMM_WORLD, MPI
        self.rank, self.size = self.comm.rank, self.comm.size

    def sum_(self, array: Any, op: str = "sum") -> None:
        """Reduce an array in place."""
        self.comm.Allreduce(self.mpi.IN_PLACE, array, self.mpi.MAX if op == "max" else self.mpi.SUM)

    def broadcast_(self, array: Any) -> None:
        """Copy rank 0's array to all."""
        self.comm.Bcast(array, 0)


def kadril_rank(world: Any, scenario: str) -> None:
    """Run a scenario on a rank of `kadril.testing.Ranks`."""
    from kadril.testing.faults import mark

    SCENARIOS[scenario](KadrilEngine(world), mark)


def gloo_rank(rank: int, size: int, scenario: str, directory: str) -> None:
    """Run a scenario on gloo, in a process of `kadril.testing.Ranks` that has no world."""
    from kadril.testing.faults import mark

    SCENARIOS[scenario](GlooEngine(rank, size, str(Path(directory) / "store")), mark)


def mpi_rank(scenario: str, mark: Callable[[str], None]) -> None:
    """Run a scenario on a rank of mpirun."""
    SCENARIOS[scenario](MpiEngine(), mark)
