"""World of all ranks, and who this one is: by `kadril run`, torchrun, mpirun, srun, or alone.

| file | what it holds |
|---|---|
| session.py | init(), shutdown(), and questions to the one world of this process |
| world.py | a world: all ranks of a job with a transport between them |
| identity.py | rank, size and meeting place |
| launchers.py, slurm.py, process_group.py | who tells them: a launcher, Slurm, torch.distributed |
| membership.py, job_messages.py | place in an elastic job, as its launcher tells |
| preloading.py | what may be loaded before a process is forked into a rank of such a job |
| bootstrap/ | exchange of small blobs between all ranks: over a hub, TCP, torch's store, or MPI |
| card.py | what tells whether two ranks share a host |
| neighbours.py | the proof of it |
| layout.py | ranks by host: local and cross ranks |
| choice.py, transport_opening.py | which transport, and why; how it is opened |
| hub.py | ranks connected by proved connections, within a host or between hosts |
| hub_server.py, hub_peer.py | the two sides of a hub: of rank 0, of the others |
| gathering.py, door.py | how rank 0 gathers the others; members are let in, strangers are not |
| joining.py | how the others come |
| handshake.py | the proof that two processes belong to the same job |
| secret.py, unix.py | the private directory and its socket |
| place.py, inet.py | where ranks meet: such a socket, or a port of a host |
| connector.py, acceptor.py | proved connections between any two ranks; the one port of a host |
| wire.py, fields.py | frames on a socket; JSON objects, read strictly |
| deadline.py | deadlines on the monotonic clock |
| heap.py | has the allocator keep what a training step frees |
| logs.py | the "kadril" logger |

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
from kadril.world.world import World, open_local, open_mpi, open_remote

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
    "open_remote",
    "rank",
    "shared_empty",
    "shutdown",
    "size",
]
