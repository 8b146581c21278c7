"""A buffer: memory with an element type, as transports see it.

Transports take contiguous torch tensors and numpy arrays. `as_buffer` looks at one of them once
and gives its address, count and dtype; nothing is copied.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from kadril.errors import UnsupportedError

__all__ = ["Array", "Buffer", "DType", "as_buffer", "as_bytes"]

Array: TypeAlias = torch.Tensor | npt.NDArray[np.generic]


class DType(NamedTuple):
    """An element type: its code in the native core, its name, its size in bytes."""

    code: int
    name: str
    itemsize: int


# The codes are those of `native/dtype.h`; a unit test holds the two against each other.
DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType(0, "bool", 1),
        DType(1, "uint8", 1),
        DType(2, "int8", 1),
        DType(3, "uint16", 2),
        DType(4, "int16", 2),
        DType(5, "uint32", 4),
        DType(6, "int32", 4),
        DType(7, "uint64", 8),
        DType(8, "int64", 8),
        DType(9, "float16", 2),
        DType(10, "bfloat16", 2),
        DType(11, "float32", 4),
        DType(12, "float64", 8),
        DType(13, "complex64", 8),
        DType(14, "complex128", 16),
    )
}

FIRST_COMPLEX = DTYPES["complex64"].code

TORCH_DTYPES = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
NUMPY_DTYPES = {np.dtype(name): dtype for name, dtype in DTYPES.items() if name != "bfloat16"}


class Buffer(NamedTuple):
    """Contiguous memory of one element type."""

    address: int
    count: int  # type: ignore[assignment] # hides tuple.count, which nobody asks of a buffer
    dtype: DType
    shape: tuple[int, ...]
    array: Array  # whose memory it is

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.dtype.itemsize


def as_buffer(array: Array) -> Buffer:
    """Look at a tensor or array in CPU memory as a buffer.

    Raises:
        TypeError: neither a torch tensor nor a numpy array.
        UnsupportedError: its dtype is not one that transports move, or it is not in CPU memory.
        ValueError: it is not contiguous, not writeable (numpy), or conjugated lazily (torch).
    """
    if isinstance(array, torch.Tensor):
        dtype = TORCH_DTYPES.get(array.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"dtype {array.dtype} is not supported; use one of {', '.join(DTYPES)}"
            )
        if not array.is_cpu:
            raise UnsupportedError(
                f"a tensor on {array.device} cannot go through CPU memory; use the c10d transport"
                " with a backend of that device, or tensor.cpu()"
            )
        if not array.is_contiguous():
            raise ValueError(
                f"the tensor of shape {tuple(array.shape)} is not contiguous; use .contiguous()"
            )
        if array.is_neg() or (dtype.code >= FIRST_COMPLEX and array.is_conj()):
            raise ValueError(
                "the tensor is conjugated or negated lazily, its memory is not; use"
                " .resolve_conj().resolve_neg()"
            )
        # Past the generated __new__, which costs more than all of the above.
        return tuple.__new__(Buffer, (array.data_ptr(), array.numel(), dtype, array.shape, array))
    if isinstance(array, np.ndarray):
        return as_numpy_buffer(array)
    raise TypeError(f"expected a torch tensor or a numpy array, got {type(array).__name__}")


def as_numpy_buffer(array: npt.NDArray[np.generic]) -> Buffer:
    """`as_buffer` of a numpy array."""
    dtype = NUMPY_DTYPES.get(array.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"dtype {array.dtype} is not supported; use one of {', '.join(DTYPES)}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the array of shape {array.shape} is not contiguous; use np.ascontiguousarray"
        )
    if not array.flags.writeable:
        raise ValueError("the array is read-only; use .copy()")
    return Buffer(array.__array_interface__["data"][0], array.size, dtype, array.shape, array)


def as_bytes(array: Array) -> torch.Tensor:
    """The memory of a contiguous tensor or array as a flat uint8 tensor, without a copy."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    # `.data`, not `.detach()`: what a collective writes is no operation of torch by whatever means,
    # and autograd counts those. By its own strides an empty or one-element tensor need not look
    # contiguous to `view`.
    return tensor.data.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
