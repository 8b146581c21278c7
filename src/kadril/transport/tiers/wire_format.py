"""The element type that sums have between hosts: their own, or a shorter one.

With `KADRIL_WIRE_DTYPE` set to bf16 or fp16, sums of float32 and float64 cross between hosts
as 16-bit floats. Inside a host nothing is rounded, and every rank gets the same bits.

With H hosts, partial sums p_h and unit roundoff u (2^-8 of bf16, 2^-11 of fp16), the result
differs from that without by at most

    2 u sum_h |p_h| + (H + 1) 2^-24 sum_h |p_h|        in the range of the 16-bit type

since each p_h is rounded once, and the sum once on its way back.
"""

from __future__ import annotations

import torch

from kadril.transport.network_transport import Kernel
from kadril.transport.operands import OPS
from kadril.transport.tiers.scratch import Scratch

__all__ = ["WIRE_DTYPES", "WireFormat"]

WIRE_DTYPES = {"": None, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDED = {"float32": torch.float32, "float64": torch.float64}


class WireFormat:
    """How elements of one reduction cross between hosts.

    Attributes:
        itemsize: bytes of an element in a packet.
        rounds: whether a packet has another element type than the array.
    """

    def __init__(self, kernel: Kernel, wire_dtype: str) -> None:
        self._dtype = ROUNDED.get(kernel.dtype.name)
        self._wire = WIRE_DTYPES[wire_dtype]
        self.rounds = (
            self._wire is not None and self._dtype is not None and OPS[kernel.op_code] == "sum"
        )
        self.itemsize = 2 if self.rounds else kernel.dtype.itemsize

    def pack(self, memory: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """Bytes to send for the bytes of some elements."""
        if not self.rounds:
            return memory
        assert self._dtype is not None  # noqa: S101
        assert self._wire is not None  # noqa: S101
        elements = memory.view(self._dtype)
        packed = scratch.take(elements.numel() * 2)
        packed.view(self._wire).copy_(elements)
        return packed

    def unpack(self, packed: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """Bytes of the elements that came."""
        if not self.rounds:
            return packed
        assert self._dtype is not None  # noqa: S101
        memory = scratch.take(packed.numel() // 2 * self._dtype.itemsize)
        self.unpack_into(packed, memory)
        return memory

    def unpack_into(self, packed: torch.Tensor, memory: torch.Tensor) -> None:
        """Write the bytes of the elements that came; nothing where they came into place."""
        if self.rounds:
            assert self._dtype is not None  # noqa: S101
            assert self._wire is not None  # noqa: S101
            memory.view(self._dtype).copy_(packed.view(self._wire))
