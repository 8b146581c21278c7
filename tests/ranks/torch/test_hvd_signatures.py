"""Names, positional order and defaults, as scripts written for Horovod 0.28 use them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import kadril.errors
import kadril.torch as hvd

GLOBAL = hvd.global_process_set
NONE = hvd.Compression.none
REQUIRED = inspect.Parameter.empty

SCALES = [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
SET = [("process_set", GLOBAL)]
REDUCE = [("average", None), ("name", None)]
COMPRESSION = [("compression", NONE)]
OP = [("op", None)]
SCATTER = [("op", hvd.Average), *SET, *SCALES]

SIGNATURES: dict[str, list[tuple[str, Any]]] = {
    "allreduce": [("tensor", REQUIRED), *REDUCE, *COMPRESSION, *OP, *SCALES, *SET],
    "allreduce_async": [("tensor", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "allreduce_": [("tensor", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "allreduce_async_": [("tensor", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "grouped_allreduce": [("tensors", REQUIRED), *REDUCE, *COMPRESSION, *OP, *SCALES, *SET],
    "grouped_allreduce_async": [("tensors", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "grouped_allreduce_": [("tensors", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "grouped_allreduce_async_": [("tensors", REQUIRED), *REDUCE, *OP, *SCALES, *SET],
    "sparse_allreduce_async": [("tensor", REQUIRED), ("name", REQUIRED), ("op", REQUIRED), *SET],
    "allgather": [("tensor", REQUIRED), ("name", None), *SET],
    "allgather_async": [("tensor", REQUIRED), ("name", None), *SET],
    "grouped_allgather": [("tensors", REQUIRED), ("name", None), *SET],
    "grouped_allgather_async": [("tensors", REQUIRED), ("name", None), *SET],
    "broadcast": [("tensor", REQUIRED), ("root_rank", REQUIRED), ("name", None), *SET],
    "broadcast_async": [("tensor", REQUIRED), ("root_rank", REQUIRED), ("name", None), *SET],
    "broadcast_": [("tensor", REQUIRED), ("root_rank", REQUIRED), ("name", None), *SET],
    "broadcast_async_": [("tensor", REQUIRED), ("root_rank", REQUIRED), ("name", None), *SET],
    "alltoall": [("tensor", REQUIRED), ("splits", None), ("name", None), *SET],
    "alltoall_async": [("tensor", REQUIRED), ("splits", None), ("name", None), *SET],
    "reducescatter": [("tensor", REQUIRED), ("name", None), *COMPRESSION, *SCATTER],
    "reducescatter_async": [("tensor", REQUIRED), ("name", None), *SCATTER],
    "grouped_reducescatter": [("tensors", REQUIRED), ("name", None), *COMPRESSION, *SCATTER],
    "grouped_reducescatter_async": [("tensors", REQUIRED), ("name", None), *SCATTER],
    "join": [("device", -1)],
    "barrier": [*SET],
    "poll": [("handle", REQUIRED)],
    "synchronize": [("handle", REQUIRED)],
    "init": [("comm", None), ("process_sets", None)],
    "shutdown": [],
    "is_initialized": [],
    "rank": [],
    "size": [],
    "local_rank": [],
    "local_size": [],
    "cross_rank": [],
    "cross_size": [],
    "is_homogeneous": [],
    "start_timeline": [("file_path", REQUIRED), ("mark_cycles", False)],
    "stop_timeline": [],
}

# What a script may ask besides.
FLAGS = """
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
    ccl_built cuda_built rocm_built
"""
OTHERS = """
    Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
    ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max
    Product DistributedOptimizer SyncBatchNorm HorovodInternalError elastic
"""


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    assert all(parameter.kind in positional for parameter in parameters)
    assert [(each.name, each.default) for each in parameters] == SIGNATURES[name]


def test_names() -> None:
    for name in (*SIGNATURES, *FLAGS.split(), *OTHERS.split()):
        assert hasattr(hvd, name), name


def test_reduce_ops_are_numbers() -> None:
    ops = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert ops == [0, 1, 2, 3, 4, 5]


def test_errors_are_below_one_that_scripts_catch() -> None:
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    for name in ("MismatchError", "PeerLost", "Stalled", "ClosedError"):
        assert issubclass(getattr(kadril.errors, name), hvd.HorovodInternalError)


def test_global_process_set() -> None:
    assert hvd.global_process_set.process_set_id == 0
