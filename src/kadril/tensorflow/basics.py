"""Ranks, process sets, features; and `init()`, which prepares TensorFlow too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kadril.shared_engine import basics as _basics
from kadril.shared_engine.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    ddl_built,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from kadril.shared_engine.context import context
from kadril.shared_engine.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from kadril.shared_engine.reduce_ops import Adasum, Average, Max, Min, Product, Sum, choose_op
from kadril.tensorflow.framework import tf

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "choose_op",
    "context",
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
    "set_by_id",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks and start the engine; collective. Calling it again does no harm.

    Before the first op it also divides the cores of a host between its ranks: TensorFlow's pool
    would take all of them in each rank. Where `tf.config.threading` was set, that holds.

    Args:
        comm: a communicator of mpi4py whose ranks are the world; None for all ranks that the
            launcher started. A list of all ranks is the same as None.
        process_sets: sets to register from the start, the same on all ranks; or "dynamic", which is
            always allowed here.

    Raises:
        RendezvousError: a rank did not come.
        ValueError: two sets of the same ranks, or a list of ranks that is not all of them.
    """
    _basics.init(comm, process_sets)
    share_cores()


def share_cores() -> None:
    """Give each rank of a host its part of the cores, unless it is bound to some."""
    num_cores = len(os.sched_getaffinity(0))
    is_bound = num_cores < (os.cpu_count() or 1)
    if local_size() == 1 or is_bound or tf.config.threading.get_intra_op_parallelism_threads():
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, num_cores // local_size()))
    except RuntimeError:
        return  # TensorFlow has started its pool already


def set_by_id(set_id: int) -> ProcessSet:
    """The registered process set of a number."""
    found: ProcessSet = context().registry.sets[set_id]
    return found


def gloo_enabled() -> bool:
    """Whether the job runs without MPI, as scripts that ask for gloo mean it."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Whether ranks can meet without MPI, as scripts that ask for gloo mean it: always."""
    return True


def nccl_built() -> int:
    """NCCL's version as a number, or 0 without it: TensorFlow's collectives here are the CPU's."""
    return 0


def cuda_built() -> bool:
    """Whether tensors on CUDA devices are moved without the CPU: never."""
    return False


def rocm_built() -> bool:
    """Whether tensors on ROCm devices are moved without the CPU: never."""
    return False
