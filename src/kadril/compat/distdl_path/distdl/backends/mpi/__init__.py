"""Partitions, buffers, and the structure of tensors on other workers."""

from . import buffer, partition, tensor_comm, tensor_decomposition
from .buffer import MPIBufferManager as BufferManager
from .buffer import MPIExpandableBuffer as ExpandableBuffer
from .partition import MPICartesianPartition as CartesianPartition
from .partition import MPIPartition as Partition
from .tensor_comm import assemble_global_tensor_structure
from .tensor_decomposition import compute_subtensor_shapes_unbalanced

__all__ = [
    "BufferManager",
    "CartesianPartition",
    "ExpandableBuffer",
    "Partition",
    "assemble_global_tensor_structure",
    "buffer",
    "compute_subtensor_shapes_unbalanced",
    "partition",
    "tensor_comm",
    "tensor_decomposition",
]
