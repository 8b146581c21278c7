"""Collectives over all ranks, on torch tensors and numpy arrays: `kadril.allreduce` and siblings.

    y = kadril.allreduce(x)            a new array, as large as x
    kadril.allreduce(x, out=y)         in memory of yours
    kadril.allreduce_(x)               in place

They go straight to the transport of the world: blocking, in program order, every rank makes the
same calls. What other modules add to the same movements of data:

    kadril.ops       gradients, partitions            kadril.torch     names in any order, handles

Values move here, and no graph is recorded: a tensor that requires a gradient is refused, and the
error names the operation that has one. Rows are what lies along the first dim.

| file | what it holds |
|---|---|
| reducing.py | allreduce, reduce, reduce_scatter |
| moving.py | broadcast, allgather, alltoall, barrier |
| memory.py | arrays that a collective reads from or writes to |
| rows.py | rows, and what ranks tell each other of theirs |
"""

from __future__ import annotations

from kadril.collectives.moving import allgather, alltoall, barrier, broadcast, broadcast_
from kadril.collectives.reducing import allreduce, allreduce_, reduce, reduce_scatter

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "reduce",
    "reduce_scatter",
]
