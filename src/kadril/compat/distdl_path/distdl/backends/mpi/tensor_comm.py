"""The structure of the global tensor that blocks on a partition make up."""

from __future__ import annotations

from typing import Any

import numpy as np

from kadril.transport.tensor import TORCH_DTYPES

from ...utilities.torch import TensorStructure
from .partition import MPIPartition
from .tensor_decomposition import compute_subtensor_shapes_unbalanced

__all__ = ["assemble_global_tensor_structure"]

DTYPES = list(TORCH_DTYPES)


def assemble_global_tensor_structure(
    local_tensor_structure: Any, P_in: MPIPartition, P_out: MPIPartition | None = None
) -> TensorStructure:
    """Return the structure of a global tensor; collective over both partitions.

    Args:
        local_tensor_structure: of this worker's block on `P_in`; a tensor will do.
        P_in: where the tensor is; one axis for each dim.
        P_out: the workers that get the result, too; it has all workers of `P_in`.
    """
    result = TensorStructure()
    row = None
    if P_in.active:
        shapes = compute_subtensor_shapes_unbalanced(local_tensor_structure, P_in)
        # Along dim d, the blocks at the origin of all other axes make up the tensor.
        lines = [
            shapes[tuple(slice(None) if axis == dim else 0 for axis in range(P_in.dim))][..., dim]
            for dim in range(P_in.dim)
        ]
        result.shape = np.array([int(line.sum()) for line in lines], dtype=np.int64)
        result.dtype = local_tensor_structure.dtype
        result.requires_grad = bool(local_tensor_structure.requires_grad)
        row = np.array(
            [DTYPES.index(result.dtype), int(result.requires_grad), *result.shape], dtype=np.int64
        )
    if P_out is not None and P_out.active:
        row = P_out.broadcast_data(row, P_data=P_in)
        result.dtype, result.requires_grad = DTYPES[int(row[0])], bool(row[1])
        result.shape = np.array(row[2:])
    return result
