"""Ways for the ranks of a world to exchange a few small blobs before there is a transport.

| file | what it holds |
|---|---|
| base.py | the protocol, and agreement over it |
| opening.py | opens the bootstrap that an identity asks for |
| host_hub.py | over one hub of one host: `kadril run`, and a world of one |
| tcp.py | over one hub at a port of rank 0's host: `kadril run` on several hosts |
| store.py, serving.py | over a store of torch; who serves it |
| appointment.py | how ranks of torch.distributed agree on a job, over its store |
| mpi.py | over MPI: mpirun, mpiexec, srun |
"""

from __future__ import annotations

from kadril.world.bootstrap.base import Bootstrap, agree
from kadril.world.bootstrap.opening import open_bootstrap

__all__ = ["Bootstrap", "agree", "open_bootstrap"]
