"""The element type that sums have between hosts: their own, or a shorter one.

With `KADRIL_WIRE_DTYPE` set to bf16 or fp16, sums of float32 and float64 cross between hosts
as 16-bit floats. Inside a host nothing is rounded, and every rank gets the same bits.

With H hosts, partial sums p_h and unit roundoff u (2^-8 of bf16, 2^-11 of fp16), the result
differs from that without by at most

    2 u sum_h |p_h| + (H + 1) 2^-24 sum_h |p_h|        in the range of the 16-bit type

since each p_h is rounded once, and the sum once on its way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kadril.transport.buffer import Memory
from kadril.transport.network_transport import Kernel
from kadril.transport.operands import OPS
from kadril.transport.tiers.scratch import Scratch

if TYPE_CHECKING:
    import torch

__all__ = ["WIRE_DTYPES", "WireFormat", "check_wire_dtype"]

WIRE_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}  # their names in torch, which rounds
ROUNDED = ("float32", "float64")


def check_wire_dtype(wire_dtype: str) -> None:
    """Raise `ModuleNotFoundError` where sums are to be rounded, and torch is not installed."""
    if wire_dtype:
        import kadril.needs_torch  # noqa: F401


class WireFormat:
    """Format in which elements of one reduction cross between hosts.

    Attributes:
        itemsize: bytes of an element in a packet.
        rounds: whether a packet has another element type than the array.
    """

    def __init__(self, kernel: Kernel, wire_dtype: str) -> None:
        self._dtype, self._wire = kernel.dtype.name, WIRE_DTYPES.get(wire_dtype, "")
        self.rounds = bool(wire_dtype) and self._dtype in ROUNDED and OPS[kernel.op_code] == "sum"
        self._num_bytes = kernel.dtype.itemsize
        self.itemsize = 2 if self.rounds else self._num_bytes

    def pack(self, memory: Memory, scratch: Scratch) -> Memory:
        """Bytes to send for the bytes of some elements."""
        if not self.rounds:
            return memory
        packed = scratch.take(memory.size // self._num_bytes * 2)
        tensor_of(packed, self._wire).copy_(tensor_of(memory, self._dtype))
        return packed

    def unpack(self, packed: Memory, scratch: Scratch) -> Memory:
        """Bytes of the elements that came."""
        if not self.rounds:
            return packed
        memory = scratch.take(packed.size // 2 * self._num_bytes)
        self.unpack_into(packed, memory)
        return memory

    def unpack_into(self, packed: Memory, memory: Memory) -> None:
        """Write the bytes of the elements that came; nothing where they came into place."""
        if self.rounds:
            tensor_of(memory, self._dtype).copy_(tensor_of(packed, self._wire))


def tensor_of(memory: Memory, dtype: str) -> torch.Tensor:
    """Return memory as a tensor of a dtype, without a copy."""
    from kadril.needs_torch import torch
    from kadril.transport.tensor import memory_tensor

    return memory_tensor(memory, getattr(torch, dtype))
