"""IBM DDL's interface: learners, tiers, and all-reduces that are checked.

    import kadril.ddl as ddl

    rank, size, device_id = ddl.init(4, mode="-mode n:4x3 -dump_iter 100")
    for parameter in model.parameters():
        ddl.bcast_(parameter)
    ...
    gradients = ddl.all_reduce_n([p.grad for p in model.parameters()], op="avg", check=0.17)

DDL had three interfaces; the names of all are here:

| here | TensorFlow operators | later Python module |
|---|---|---|
| `init` | `init`, `Init` | `init(options)` |
| `bcast`, `bcast_` | `bcast`, `Bcast` | `bcast` |
| `all_reduce`, `all_reduce_` | `all_reduce`, `AllReduce` | `allreduce` |
| `all_reduce_n`, `all_reduce_n_` | `all_reduce_n`, `AllReduceN` | `allreduce_n`, which averages |
| | | `grads_reduce` of pairs (gradient, variable) |
| `rank`, `size`, `local_rank`, `num_hosts` | | the same |

| file | what it holds |
|---|---|
| `options.py` | the text of `mode` and of DDL_OPTIONS |
| `topology.py` | dimensions of a mode, compared with the real hosts |
| `learner.py` | init, finalize, rank, size |
| `session.py` | runs and records all-reduces |
| `reducing.py`, `broadcasting.py` | the collectives |
| `parameters.py` | what learners reduce, compared between them |
| `packing.py` | lists of arrays as few flat tensors |
| `ways.py` | the ways to reduce: those of the modes, MPI_Allreduce, a reference |
| `exploration.py` | mode p: the quickest way for each size |
| `checking.py`, `failure.py` | `check`: errors, their floor; what all ranks make of a failure |
| `dump_file.py`, `command.py` | ddl.dumpNNN, and `kadril ddl show` |
| `call_log.py`, `links.py`, `report.py` | -dump_iter and -rebind_iter |
| `devices.py` | accelerators, -dev_sync |
"""

from __future__ import annotations

import kadril.needs_torch  # noqa: F401 - says what to install
from kadril.ddl.broadcasting import bcast, bcast_, bcast_n_
from kadril.ddl.call_log import CallRecord
from kadril.ddl.dump_file import Dump, read_dump
from kadril.ddl.learner import (
    Learner,
    finalize,
    init,
    is_initialized,
    local_rank,
    local_size,
    num_hosts,
    rank,
    size,
)
from kadril.ddl.options import Mode, Options, parse_options
from kadril.ddl.reducing import (
    all_reduce,
    all_reduce_,
    all_reduce_n,
    all_reduce_n_,
    allreduce_n,
    grads_reduce,
    last_reduction,
)

Init = init
Bcast = bcast
AllReduce = allreduce = all_reduce
AllReduceN = all_reduce_n

__all__ = [
    "AllReduce",
    "AllReduceN",
    "Bcast",
    "CallRecord",
    "Dump",
    "Init",
    "Learner",
    "Mode",
    "Options",
    "all_reduce",
    "all_reduce_",
    "all_reduce_n",
    "all_reduce_n_",
    "allreduce",
    "allreduce_n",
    "bcast",
    "bcast_",
    "bcast_n_",
    "finalize",
    "grads_reduce",
    "init",
    "is_initialized",
    "last_reduction",
    "local_rank",
    "local_size",
    "num_hosts",
    "parse_options",
    "rank",
    "read_dump",
    "size",
]
