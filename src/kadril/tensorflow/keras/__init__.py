"""Horovod's interface for `tf.keras`: `import kadril.tensorflow.keras as hvd`.

import kadril.tensorflow.keras as hvd

hvd.init()
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
model.fit(data, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

`tf.keras` is Keras 3, or tf_keras (Keras 2) with TF_USE_LEGACY_KERAS=1.

| file | what it holds |
|---|---|
| family.py | optimizers, variables and numpy-valued ops of TensorFlow |
| callbacks.py | callbacks for `fit` |
| elastic.py | training that outlives a change of its ranks |
"""

from __future__ import annotations

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
from kadril.tensorflow.keras import callbacks, elastic
from kadril.tensorflow.keras.family import FAMILY

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
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
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

DistributedOptimizer = FAMILY.DistributedOptimizer
PartialDistributedOptimizer = FAMILY.PartialDistributedOptimizer
allgather = FAMILY.allgather
allreduce = FAMILY.allreduce
broadcast = FAMILY.broadcast
broadcast_global_variables = FAMILY.broadcast_global_variables
load_model = FAMILY.load_model
reducescatter = FAMILY.reducescatter
