"""The engine of a process, which all front ends share: torch, tensorflow, the C interface.

`init()` starts one engine for the world, with its process sets, whoever calls it first; a program
may use several front ends side by side. Nothing here loads torch.

| file | what it holds |
|---|---|
| `basics.py` | init, shutdown, rank, size, what is built |
| `context.py` | what `init()` started in this process: an engine, with its process sets |
| `process_sets.py`, `process_set_reference.py` | subsets of the ranks; what a pickle says of one |
| `handles.py` | what asynchronous operations return |
| `object_codec.py` | bytes of the objects that object collectives move |
| `reduce_ops.py` | the reductions, by the numbers that scripts know them by |
| `headers.py` | where the C headers are |
| `elastic/` | training that outlives a change of its ranks |
"""

from __future__ import annotations

from kadril.shared_engine.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from kadril.shared_engine.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)

__all__ = [
    "ProcessSet",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
