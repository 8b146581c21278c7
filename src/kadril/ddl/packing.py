"""Lists of arrays as few flat tensors, so that a list is reduced in one shot.

    [float32[2, 3], int64[4], float32[5]]   --pack-->   float32[11], int64[4]

Arrays of one dtype lie next to each other in new memory, in the order of the list. Results are
views of it. Tensors on an accelerator are packed in CPU memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from kadril.collectives.memory import as_source
from kadril.transport.buffer import Array, as_buffer
from kadril.transport.tensor import TORCH_DTYPES, tensor_bytes

__all__ = ["DTYPE_OF_NAME", "PackedArrays", "pack", "parts_of", "unpack", "write_back"]

DTYPE_OF_NAME = {info.name: dtype for dtype, info in TORCH_DTYPES.items()}


class PackedArrays(NamedTuple):
    """Arrays of one dtype, in one flat tensor.

    Attributes:
        flat: their elements.
        places: of the arrays in the list that was packed.
        begins: where each begins in `flat`.
    """

    flat: torch.Tensor
    places: tuple[int, ...]
    begins: tuple[int, ...]


def pack(arrays: Sequence[Array], operation: str) -> list[PackedArrays]:
    """Pack arrays into new memory; dtypes in the order in which they first appear.

    Raises:
        TypeError: something in the list is not an array.
        ValueError: a tensor requires a gradient.
        UnsupportedError: a dtype that transports do not move.
    """
    groups: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
    for place, array in enumerate(arrays):
        source = as_source(on_cpu(array), operation)
        dtype = DTYPE_OF_NAME[as_buffer(source).dtype.name]
        groups.setdefault(dtype, []).append((place, tensor_bytes(source)))
    packed = []
    for dtype, members in groups.items():
        flat = torch.cat([memory for _, memory in members]).view(dtype)
        sizes = [memory.numel() // dtype.itemsize for _, memory in members]
        begins = np.cumsum([0, *sizes[:-1]]).tolist()
        packed.append(PackedArrays(flat, tuple(place for place, _ in members), tuple(begins)))
    return packed


def on_cpu(array: Array) -> Array:
    """A tensor in CPU memory: its own, or a copy."""
    return array.cpu() if isinstance(array, torch.Tensor) else array


def parts_of(packed: Sequence[PackedArrays], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the arrays that were packed, as views of their memory, in the order of the list."""
    parts: dict[int, torch.Tensor] = {}
    for each in packed:
        for place, begin in zip(each.places, each.begins, strict=True):
            shape = tuple(shapes[place])
            parts[place] = each.flat[begin : begin + math.prod(shape)].view(shape)
    return [parts[place] for place in range(len(parts))]


def unpack(packed: Sequence[PackedArrays], arrays: Sequence[Array]) -> list[Any]:
    """Return what was packed, in arrays like the given ones."""
    parts = parts_of(packed, [like.shape for like in arrays])
    return [
        part.to(like.device) if isinstance(like, torch.Tensor) else part.numpy()
        for part, like in zip(parts, arrays, strict=True)
    ]


def write_back(results: Sequence[Array], arrays: Sequence[Array]) -> None:
    """Overwrite arrays by results."""
    with torch.no_grad():
        for result, array in zip(results, arrays, strict=True):
            if isinstance(array, torch.Tensor):
                array.copy_(cast("torch.Tensor", result))
            else:
                array[...] = result
