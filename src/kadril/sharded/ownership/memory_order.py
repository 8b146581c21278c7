"""The order of a tensor's elements in memory, and flat memory seen in the tensor's shape.

A channels_last weight is contiguous once its dims are put in the order of its strides. A
piece of it is a range of that memory, so nothing is copied to step it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["dims_in_memory", "flat_order", "shaped", "strides_in_memory"]


def dims_in_memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return dims from the slowest to the fastest; 0, 1, ... if memory has gaps or overlaps."""
    natural = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return natural
    dims = tuple(sorted(natural, key=tensor.stride().__getitem__, reverse=True))
    return dims if tensor.permute(dims).is_contiguous() else natural


def flat_order(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the elements flat, in the order of memory; a copy only where they do not lie so."""
    return tensor.permute(tuple(dims)).reshape(-1)


def shaped(flat: torch.Tensor, shape: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    """View flat memory in a shape whose dims lie in a given order; the inverse of `flat_order`."""
    in_memory = flat.view([shape[dim] for dim in dims])
    return in_memory.permute([list(dims).index(dim) for dim in range(len(shape))])


def strides_in_memory(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the tensor that `shaped` gives."""
    strides = [1] * len(shape)
    count = 1
    for dim in reversed(dims):
        strides[dim] = count
        count *= shape[dim]
    return tuple(strides)
