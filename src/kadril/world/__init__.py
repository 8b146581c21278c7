"""Who am I, and who are the others: from `kadril run`, torchrun, mpirun, srun, or alone.

    session      init(), shutdown(), and questions to the one world of this process
    world        a world: all ranks of a job with a transport between them
    identity     rank, size and meeting place: by a launcher (launchers, slurm), or by the
                 process group of torch.distributed (process_group)
    bootstrap/   exchange of small blobs between all ranks: over a hub, torch's store, or MPI
    card         what tells whether two ranks share a host
    neighbours   the proof of it
    layout       ranks by host: local and cross ranks
    choice       which transport, and why
    hub          ranks of one host, connected by proved unix-domain connections
        door, gathering     rank 0 lets the others in        handshake    the proof
        joining             the others come                  wire         frames
        secret, unix        the private directory and its socket

Nothing here loads torch before a transport is opened.
"""

from __future__ import annotations

from kadril.world.hub import Hub
from kadril.world.identity import Identity, find_identity
from kadril.world.layout import Layout
from kadril.world.session import (
    cross_rank,
    cross_size,
    current,
    init,
    is_initialized,
    is_main,
    local_rank,
    local_size,
    make_current,
    rank,
    shared_empty,
    shutdown,
    size,
)
from kadril.world.world import World, open_local, open_mpi

__all__ = [
    "Hub",
    "Identity",
    "Layout",
    "World",
    "cross_rank",
    "cross_size",
    "current",
    "find_identity",
    "init",
    "is_initialized",
    "is_main",
    "local_rank",
    "local_size",
    "make_current",
    "open_local",
    "open_mpi",
    "rank",
    "shared_empty",
    "shutdown",
    "size",
]
