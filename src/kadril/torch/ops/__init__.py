"""The operations: one file for each collective, forward and backward side by side.

A name ending in `_async` returns a handle, one ending in `_` works in place. Every rank of the
process set calls an operation under the same name; the order does not matter.
"""

from __future__ import annotations

from kadril.torch.handles import poll, synchronize
from kadril.torch.ops.allgather import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from kadril.torch.ops.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
)
from kadril.torch.ops.alltoall import alltoall, alltoall_async
from kadril.torch.ops.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from kadril.torch.ops.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from kadril.torch.ops.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from kadril.torch.ops.sparse import sparse_allreduce_async
from kadril.torch.ops.waiting import barrier, join

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
