"""A buffer: memory with an element type, as transports see it.

Transports take contiguous torch tensors and numpy arrays. `as_buffer` looks at one of them once
and gives its address, count and dtype; nothing is copied. What needs torch is in `tensor.py`, which
is loaded when the first tensor comes: a program without torch never loads it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kadril.errors import UnsupportedError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

__all__ = [
    "Array",
    "Buffer",
    "DType",
    "Memory",
    "address_of",
    "as_buffer",
    "as_bytes",
    "is_tensor",
    "unsupported_dtype",
]

Array: TypeAlias = "torch.Tensor | npt.NDArray[Any]"

Memory: TypeAlias = npt.NDArray[np.uint8]  # bytes, contiguous


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

# With bfloat16 since an array of it came: ml_dtypes defines it, which comes with TensorFlow or JAX.
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


def is_tensor(array: object) -> TypeIs[torch.Tensor]:
    """Whether it is a torch tensor; no program has one that has not loaded torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def as_buffer(array: Array | Buffer) -> Buffer:
    """Look at a tensor or array in CPU memory as a buffer; a buffer is returned as it is.

    Raises:
        TypeError: neither a torch tensor nor a numpy array.
        UnsupportedError: its dtype is not one that transports move, or it is not in CPU memory.
        ValueError: it is not contiguous, not writeable (numpy), or conjugated lazily (torch).
    """
    if isinstance(array, np.ndarray):
        return as_numpy_buffer(array)
    if is_tensor(array):
        found: Buffer = tensors().as_tensor_buffer(array)
        return found
    if isinstance(array, Buffer):
        return array
    raise TypeError(f"expected a torch tensor or a numpy array, got {type(array).__name__}")


def tensors() -> Any:
    """Return `tensor.py`, loaded once; the statement for it would take a microsecond each time."""
    module = sys.modules.get("kadril.transport.tensor")
    if module is None:
        from kadril.transport import tensor as module
    return module


def as_numpy_buffer(array: npt.NDArray[Any]) -> Buffer:
    """`as_buffer` of a numpy array."""
    dtype = NUMPY_DTYPES.get(array.dtype)
    if dtype is None:
        dtype = dtype_by_name(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the array of shape {array.shape} is not contiguous; use np.ascontiguousarray"
        )
    if not array.flags.writeable:
        raise ValueError("the array is read-only; use .copy()")
    return Buffer(address_of(array), array.size, dtype, array.shape, array)


def dtype_by_name(dtype: np.dtype[Any]) -> DType:
    """Find bfloat16, which is no type of numpy's own and known by its name only.

    Others are not looked for by name: float32 of another byte order has the same one.
    """
    if dtype.name != "bfloat16" or dtype.itemsize != 2:
        raise unsupported_dtype(dtype)
    found = NUMPY_DTYPES[dtype] = DTYPES["bfloat16"]
    return found


def unsupported_dtype(dtype: object) -> UnsupportedError:
    """Return the error about a dtype that transports do not move."""
    return UnsupportedError(f"dtype {dtype} is not supported; use one of {', '.join(DTYPES)}")


def address_of(array: npt.NDArray[Any]) -> int:
    """Return where the memory of an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def as_bytes(array: Array) -> Memory:
    """Return the memory of a contiguous tensor or array as flat bytes, without a copy."""
    if is_tensor(array):
        memory: Memory = tensors().tensor_bytes(array).numpy()
        return memory
    return array.reshape(-1).view(np.uint8)
