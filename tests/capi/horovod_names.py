"""Names that adapters and scripts written against Horovod's own interface use.

Each is looked up, and called, by `test_horovod_names.py`. What belongs to TensorFlow is not here:
kadril has no `horovod.tensorflow`.
"""

from __future__ import annotations


def words(text: str) -> list[str]:
    return text.split()


BASICS = words("""
    init shutdown is_initialized start_timeline stop_timeline
    size local_size cross_size rank local_rank cross_rank is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built
    _add_process_set_impl _remove_process_set_impl _process_set_rank _process_set_size
    _get_process_set_ids_and_ranks _comm_process_set_id
""")

C_FUNCTIONS = words("""
    horovod_init horovod_init_multi_comm horovod_shutdown horovod_is_initialized
    horovod_rank horovod_local_rank horovod_cross_rank
    horovod_size horovod_local_size horovod_cross_size horovod_is_homogeneous
    horovod_start_timeline horovod_stop_timeline horovod_mpi_threads_supported
    horovod_mpi_enabled horovod_mpi_built horovod_gloo_enabled horovod_gloo_built
    horovod_nccl_built horovod_ddl_built horovod_ccl_built horovod_cuda_built horovod_rocm_built
    horovod_reduce_op_average horovod_reduce_op_sum horovod_reduce_op_adasum
    horovod_reduce_op_min horovod_reduce_op_max horovod_reduce_op_product
    horovod_add_process_set horovod_remove_process_set horovod_process_set_rank
    horovod_process_set_size horovod_process_set_included horovod_number_of_process_sets
    horovod_process_set_ids horovod_process_set_ranks
""")

CPP_TYPES = words("""
    Status StatusType StatusCallback Tensor TensorShape OpContext PersistentBuffer
    ReadyEvent ReadyEventList ReduceOp DataType Framework
""")

CPP_FUNCTIONS = words("""
    EnqueueTensorAllreduce EnqueueTensorAllreduces EnqueueTensorAllgather EnqueueTensorBroadcast
    EnqueueTensorAlltoall EnqueueTensorReducescatter EnqueueJoin EnqueueBarrier
""")

TORCH = words("""
    elastic Compression
    allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
    allreduce allreduce_async allreduce_ allreduce_async_
    grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
    sparse_allreduce_async allgather allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_
    alltoall alltoall_async reducescatter reducescatter_async join barrier poll synchronize
    init shutdown is_initialized start_timeline stop_timeline
    size local_size cross_size rank local_rank cross_rank
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built
    ProcessSet global_process_set add_process_set remove_process_set
    Average Sum Adasum DistributedOptimizer SyncBatchNorm
""")

# Names of modules: what `from horovod.torch.X import Y` finds.
TORCH_MODULES = {
    "horovod.torch.compression": ["Compression"],
    "horovod.torch.functions": [
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
    ],
    "horovod.torch.optimizer": ["DistributedOptimizer"],
    "horovod.torch.sync_batch_norm": ["SyncBatchNorm"],
    "horovod.torch.mpi_lib_v2": ["horovod_torch_allreduce_async_torch_IntTensor"],
    "horovod.common.process_sets": ["_init_process_sets", "_setup"],
    "horovod.common.exceptions": ["HorovodInternalError"],
    "horovod.common.basics": ["HorovodBasics"],
}

MPI_OPS = words("""
    _basics _handle_map _NULL _check_function _allreduce_function_factory _allreduce_async
    HorovodAllreduce mpi_lib handle_average_backwards_compatibility
""")
