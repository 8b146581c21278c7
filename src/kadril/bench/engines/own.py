"""Kadril itself: on plain tensors, and on tensors in shared memory (zero-copy)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import kadril
from kadril.bench.engines.base import Unsupported, plain_array
from kadril.bench.workload import Floats, Workload
from kadril.frameworks import is_installed
from kadril.transport.buffer import Array, is_tensor
from kadril.world import World

__all__ = ["KadrilEngine"]


class KadrilEngine:
    """The transport of a world."""

    def __init__(self, world: World, *, zero_copy: bool = False) -> None:
        self.world = world
        self.zero_copy = zero_copy

    def allocate(self, count: int, memory: str) -> Array:
        """See `Engine`."""
        array: Floats
        if self.zero_copy:
            array = self.world.shared_empty(count, "float32")
        else:
            array = plain_array(count, memory)
        return as_tensor(array) if is_installed("torch") else array

    def look(self, array: Array) -> Floats:
        """See `Engine`."""
        floats: Floats = array.numpy() if is_tensor(array) else array
        return floats

    def bind(self, work: Workload) -> Callable[[], object]:
        """See `Engine`."""
        transport = self.world.transport
        source, target = work.source, work.target
        counts = [work.part] * work.num_ranks
        following, preceding = (work.rank + 1) % work.num_ranks, (work.rank - 1) % work.num_ranks
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(transport.allreduce, source),
            "reduce": partial(transport.reduce, source, 0),
            "broadcast": partial(transport.broadcast, source, 0),
            "allgatherv": partial(transport.allgatherv, source, target, counts),
            "reduce_scatterv": partial(transport.reduce_scatterv, source, target, counts),
            "alltoallv": partial(transport.alltoallv, source, counts, target, counts),
            "exchange": partial(transport.exchange, [(following, source)], [(preceding, target)]),
            "barrier": transport.barrier,
        }
        if work.collective not in calls:
            raise Unsupported(f"kadril has no {work.collective}")
        return calls[work.collective]

    def version(self) -> str:
        """See `Engine`."""
        return f"kadril {kadril.__version__}, transport {self.world.transport.kind}"

    def close(self) -> None:
        """See `Engine`; the world belongs to the rank."""


def as_tensor(array: Floats) -> Array:
    """Return the same memory as a tensor."""
    from kadril.needs_torch import torch

    return torch.from_numpy(array)
