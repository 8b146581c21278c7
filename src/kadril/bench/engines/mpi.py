"""MPI, as mpi4py offers it: the upper-case calls, which move buffers without pickling them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kadril.bench.engines.base import Unsupported, plain_array
from kadril.bench.workload import Floats, Workload
from kadril.world import World
from kadril.world.bootstrap.mpi import import_mpi

__all__ = ["MpiEngine"]

# The word by which a library names itself.
LIBRARY_WORDS = {"openmpi": "Open MPI", "mpich": "MPICH"}


class MpiEngine:
    """COMM_WORLD.

    Raises:
        Unsupported: mpi4py has loaded another MPI than the one whose mpirun started this rank.
    """

    def __init__(self, flavour: str, world: World) -> None:
        self.mpi: Any = import_mpi()
        self.library: str = self.mpi.Get_library_version().partition("\0")[0].strip()
        self.communicator: Any = self.mpi.COMM_WORLD
        if LIBRARY_WORDS[flavour] not in self.library or self.communicator.Get_size() != world.size:
            raise Unsupported(
                f"mpirun is that of {LIBRARY_WORDS[flavour]}, and mpi4py uses"
                f" {self.library.splitlines()[0]!r} with {self.communicator.Get_size()} ranks; give"
                " each MPI an environment of its own"
            )

    def allocate(self, count: int, memory: str) -> Floats:
        """See `Engine`."""
        return plain_array(count, memory)

    def look(self, array: Floats) -> Floats:
        """See `Engine`."""
        return array

    def bind(self, work: Workload) -> Callable[[], object]:
        """See `Engine`."""
        comm, in_place = self.communicator, self.mpi.IN_PLACE
        source, target = work.source, work.target
        following, preceding = (work.rank + 1) % work.num_ranks, (work.rank - 1) % work.num_ranks
        reduce_buffers = (in_place, source) if work.rank == 0 else (source, None)
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(comm.Allreduce, in_place, source),
            "reduce": partial(comm.Reduce, *reduce_buffers, root=0),
            "broadcast": partial(comm.Bcast, source, root=0),
            "allgatherv": partial(comm.Allgather, source, target),
            "reduce_scatterv": partial(comm.Reduce_scatter_block, source, target),
            "alltoallv": partial(comm.Alltoall, source, target),
            "exchange": partial(comm.Sendrecv, source, following, recvbuf=target, source=preceding),
            "barrier": comm.Barrier,
        }
        if work.collective not in calls:
            raise Unsupported(f"MPI has no {work.collective}")
        return calls[work.collective]

    def version(self) -> str:
        """See `Engine`."""
        return self.library.splitlines()[0].partition(",")[0]

    def close(self) -> None:
        """See `Engine`; MPI ends itself when the process does."""
