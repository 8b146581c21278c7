"""Sparse all-reduce: indices and values of all ranks, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kadril.shared_engine.handles import synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_engine.reduce_ops import Average
from kadril.torch.ops.allgather import allgather_async
from kadril.torch.ops.staging import conductor_of

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Begin an all-reduce of a sparse tensor, and give a function that waits for the result.

    The result is an uncoalesced sparse tensor: duplicates are added when it is coalesced. Average
    divides the values by the number of ranks, every other op adds them.

    Args:
        tensor: sparse COO, of the same shape on all ranks; the number of entries may differ.
        name: what ranks know the operation by.
        op: Average or Sum.
        process_set: the ranks that take part.

    Raises:
        ValueError: not a sparse COO tensor.
    """
    if tensor.layout != torch.sparse_coo:
        raise ValueError("sparse_allreduce_async takes a sparse COO tensor; use allreduce_async")
    size = conductor_of(process_set).size
    entries = tensor if tensor.is_coalesced() else tensor.coalesce()
    # Transposed, so that entries are rows: that is what an all-gather concatenates.
    indices = allgather_async(entries.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(entries.values(), f"{name}.values", process_set)

    def finish() -> torch.Tensor:
        all_indices = synchronize(indices)
        all_values = synchronize(values)
        if op == Average:
            all_values = all_values / size
        # Indices come from sparse tensors of this very shape.
        return torch.sparse_coo_tensor(
            all_indices.t(), all_values, tensor.shape, check_invariants=False
        )

    return finish
