"""The operations: one file for each collective, forward and backward side by side.

A name ending in `_async` returns a handle, one ending in `_` works in place. Every rank of the
process set calls an operation under the same name; the order does not matter.

Gradients follow Horovod's convention. A tensor is *shared* where each of the n ranks holds one of
the whole, such as the result of an all-gather or both sides of an all-reduce, and *dealt* where
each rank holds rows of its own, such as the input of an all-gather or the result of a
reduce-scatter; the root's tensor in a broadcast is dealt too. Let J be the loss of the job: the
mean over the ranks of losses computed from shared tensors, plus the sum of losses computed from
dealt ones. Then

    the gradient of a dealt tensor x_r is     dJ/dx_r
    the gradient of a shared tensor x_r is    n dJ/dx_r

so the backward pass of an operation is its adjoint, times n where it deals out shared tensors
(reducescatter), divided by n where it does the reverse (allgather, broadcast). By the same rule the
backward pass of a linear operation's backward pass is the operation itself. So a penalty on
gradients, |dJ/dx|^2 added up over the ranks' rows x_r, has the gradient that it has in one process
that holds all rows.

    operation            backward                         backward of that
    allreduce Sum        allreduce Sum                    allreduce Sum
    allgather            rows of the mean                 allgather
    broadcast            mean to the root                 broadcast
    alltoall             alltoall, back                   alltoall
    reducescatter        allgather, scaled                reducescatter
    allreduce Min, ...   its derivative (nonlinear.py)    the derivative of that

| file | what it holds |
|---|---|
| allreduce.py, grouped_allreduce.py | all-reduce: of one tensor, of several as one request |
| sparse.py | all-reduce of sparse tensors |
| nonlinear.py | gradients of Min, Max, Product and Adasum |
| allgather.py, broadcast.py, alltoall.py, reducescatter.py | one collective each |
| waiting.py | `barrier` and `join` |
| staging.py | from a user's tensor to memory that the engine can take, and back |
"""

from __future__ import annotations

from kadril.shared_engine.handles import poll, synchronize
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
