"""Horovod's interface for TensorFlow: `import kadril.tensorflow as hvd`.

import kadril.tensorflow as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(optimizer, loss)
hvd.broadcast_variables(model.variables, root_rank=0)

| file | what it holds |
|---|---|
| framework.py | TensorFlow 2, or what to install |
| basics.py | init, shutdown, rank, size, process sets, what is built |
| ops.py | the collectives that users call |
| collectives.py, naming.py | the same as ops of TensorFlow; what ranks know them by |
| op_library.py, kernels/ | the native ops, compiled at the first import; their source |
| python_ops.py | the same by Python, where there is no compiler |
| op_errors.py | errors of kadril as TensorFlow passes them on, and back again |
| gradients.py | derivatives of the collectives |
| compression.py | gradient compression |
| gradient_reduction.py, accumulation.py | the gradients of a step, over all ranks; several passes |
| distributed_optimizer.py | `DistributedOptimizer`, for every kind of optimizer |
| keras_optimizer.py, tf_keras_optimizer.py, v1_optimizer.py | of Keras 3, Keras 2 and TF1 |
| tape.py | `DistributedGradientTape` |
| variables.py, objects.py | the same start on all ranks |
| sync_batch_norm.py | batch normalization over the batches of all ranks |
| elastic.py | training that outlives a change of its ranks |
| ddl.py | the operators of IBM DDL |
| util.py | small functions that scripts take from Horovod's |
"""

from __future__ import annotations

from typing import Any

from kadril.errors import KadrilError as HorovodInternalError
from kadril.tensorflow import elastic, gradients
from kadril.tensorflow.basics import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    get_process_set_ids_and_ranks,
    global_process_set,
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
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from kadril.tensorflow.compression import Compression
from kadril.tensorflow.distributed_optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
)
from kadril.tensorflow.elastic import HostsUpdatedInterrupt
from kadril.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from kadril.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from kadril.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from kadril.tensorflow.util import _cache, _executing_eagerly, _make_subgraph
from kadril.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gradients",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    """Load Keras only for those who use its layers."""
    if name == "SyncBatchNormalization":
        from kadril.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
