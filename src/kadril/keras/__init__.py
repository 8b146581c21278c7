"""Horovod's interface for Keras 3, on TensorFlow or torch: `import kadril.keras as hvd`.

    import kadril.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    model.fit(data, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

The backend is that of Keras (KERAS_BACKEND); other ones than tensorflow and torch are refused.

| file | what it holds |
|---|---|
| framework.py | Keras 3 and its backend, or what to do |
| family.py | optimizers, variables and numpy-valued ops of that backend |
| torch_family.py, torch_optimizer.py, torch_state.py | those of torch |
| callbacks.py | callbacks for `fit` |
| elastic.py | training that outlives a change of its ranks |
"""

from __future__ import annotations

from kadril.keras import callbacks, elastic
from kadril.keras.family import BASICS, FAMILY
from kadril.shared_engine.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from kadril.shared_engine.reduce_ops import Adasum, Average, Max, Min, Product, Sum

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

Compression = FAMILY.compression

ccl_built = BASICS.ccl_built
cross_rank = BASICS.cross_rank
cross_size = BASICS.cross_size
cuda_built = BASICS.cuda_built
ddl_built = BASICS.ddl_built
gloo_built = BASICS.gloo_built
gloo_enabled = BASICS.gloo_enabled
init = BASICS.init
is_homogeneous = BASICS.is_homogeneous
is_initialized = BASICS.is_initialized
local_rank = BASICS.local_rank
local_size = BASICS.local_size
mpi_built = BASICS.mpi_built
mpi_enabled = BASICS.mpi_enabled
mpi_threads_supported = BASICS.mpi_threads_supported
nccl_built = BASICS.nccl_built
rank = BASICS.rank
rocm_built = BASICS.rocm_built
shutdown = BASICS.shutdown
size = BASICS.size
start_timeline = BASICS.start_timeline
stop_timeline = BASICS.stop_timeline
