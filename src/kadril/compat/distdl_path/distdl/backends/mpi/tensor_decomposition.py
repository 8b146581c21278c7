"""The shapes of all blocks of a tensor, balanced or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .partition import MPIPartition

__all__ = ["compute_subtensor_shapes_unbalanced"]


def compute_subtensor_shapes_unbalanced(
    local_tensor_structure: Any, P_in: MPIPartition, P_out: MPIPartition | None = None
) -> Any:
    """Return the shape of each worker's block by position; collective over both partitions.

    Args:
        local_tensor_structure: of this worker's block on `P_in`.
        P_in: where the tensor is; one axis for each dim.
        P_out: the workers that get the result, too; it has all workers of `P_in`.

    Returns:
        An array with the axes of `P_in` and one of the dims; None for workers of neither.
    """
    shapes: npt.NDArray[np.int64] | None = None
    if P_in.active:
        rows = P_in.allgather_data(np.array(tuple(local_tensor_structure.shape), dtype=np.int64))
        if rows.shape[1] != P_in.dim:
            raise ValueError(
                f"a tensor of {rows.shape[1]} dims cannot lie on a partition of {P_in.dim} axes"
            )
        shapes = rows.reshape(*P_in.shape, P_in.dim)
    if P_out is not None and P_out.active:
        return P_out.broadcast_data(shapes, P_data=P_in)
    return shapes
