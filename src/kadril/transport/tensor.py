"""Torch tensors as transports see them; the only place of the core that has to load torch for them.

It is loaded when the first tensor comes (`buffer.py`), and by the packages that work on tensors.
Without torch it says what to install.
"""

from __future__ import annotations

from kadril import _native
from kadril.errors import UnsupportedError
from kadril.needs_torch import torch
from kadril.transport.buffer import (
    DTYPES,
    FIRST_COMPLEX,
    Array,
    Buffer,
    Memory,
    is_tensor,
    unsupported_dtype,
)

__all__ = [
    "TORCH_DTYPES",
    "TORCH_DTYPE_OF_CODE",
    "as_tensor_buffer",
    "memory_tensor",
    "tensor_bytes",
]

TORCH_DTYPES = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}

TORCH_DTYPE_OF_CODE = {info.code: dtype for dtype, info in TORCH_DTYPES.items()}

# From now on the native core looks at tensors itself, where there is nothing to complain about.
_native.register_tensor(torch.Tensor, {dtype: info.code for dtype, info in TORCH_DTYPES.items()})


def as_tensor_buffer(array: torch.Tensor) -> Buffer:
    """`as_buffer` of a torch tensor."""
    dtype = TORCH_DTYPES.get(array.dtype)
    if dtype is None:
        raise unsupported_dtype(array.dtype)
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


def memory_tensor(memory: Memory, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return bytes as a flat tensor of a dtype, without a copy."""
    # Of no bytes torch makes a tensor of stride 0, which it refuses to view as another dtype.
    flat = torch.from_numpy(memory) if memory.size else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype)


def tensor_bytes(array: Array) -> torch.Tensor:
    """Return the memory of a contiguous tensor or array as a flat uint8 tensor, without a copy."""
    tensor = array if is_tensor(array) else torch.from_numpy(array)
    # `.data`, not `.detach()`: what a collective writes is no operation of torch by whatever means,
    # and autograd counts those. By its own strides an empty or one-element tensor need not look
    # contiguous to `view`.
    return tensor.data.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
