"""gloo, as `torch.distributed` offers it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from kadril.bench.engines.base import Unsupported, plain_array
from kadril.bench.workload import Floats, Workload
from kadril.world import World
from kadril.world.bootstrap.serving import connect_store, start_store

__all__ = ["GlooEngine"]

TIMEOUT = 60.0


class GlooEngine:
    """The default process group."""

    def __init__(self, world: World) -> None:
        # The store is on loopback, and its port goes by kadril's own transport: nothing is left
        # open to others, and no port has to be agreed on beforehand.
        port = np.zeros(1, dtype=np.int64)
        store = start_store("127.0.0.1", 0, TIMEOUT) if world.rank == 0 else None
        if store is not None:
            port[0] = store.port
        world.transport.broadcast(port, 0)
        if store is None:
            store = connect_store("127.0.0.1", int(port[0]), TIMEOUT)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=TIMEOUT),
        )

    def allocate(self, count: int, memory: str) -> torch.Tensor:
        """See `Engine`."""
        return torch.from_numpy(plain_array(count, memory))

    def look(self, array: torch.Tensor) -> Floats:
        """See `Engine`."""
        floats: Floats = array.numpy()
        return floats

    def bind(self, work: Workload) -> Callable[[], object]:
        """See `Engine`."""
        source, target = work.source, work.target
        following, preceding = (work.rank + 1) % work.num_ranks, (work.rank - 1) % work.num_ranks
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(dist.all_reduce, source),
            "reduce": partial(dist.reduce, source, 0),
            "broadcast": partial(dist.broadcast, source, 0),
            "allgatherv": partial(dist.all_gather_into_tensor, target, source),
            "reduce_scatterv": partial(dist.reduce_scatter_tensor, target, source),
            "alltoallv": partial(dist.all_to_all_single, target, source),
            "exchange": partial(exchange, source, following, target, preceding),
            "barrier": dist.barrier,
        }
        if work.collective not in calls:
            raise Unsupported(f"gloo has no {work.collective}")
        return calls[work.collective]

    def version(self) -> str:
        """See `Engine`."""
        return f"gloo of torch {torch.__version__}"

    def close(self) -> None:
        """See `Engine`."""
        dist.destroy_process_group()


def exchange(source: torch.Tensor, following: int, target: torch.Tensor, preceding: int) -> None:
    """Send to one neighbour and receive from another, at the same time."""
    sending, receiving = dist.isend(source, following), dist.irecv(target, preceding)
    for work in (sending, receiving):
        if work is not None:
            work.wait()
