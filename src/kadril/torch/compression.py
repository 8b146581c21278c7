"""Gradient compression: fewer bytes on the way, the caller's dtype on both ends.

    | compressor         | float32, float64 travel as | everything else   |
    |--------------------|----------------------------|-------------------|
    | `Compression.none` | themselves                 | as it is          |
    | `Compression.fp16` | float16: 11 bits, to 65504 | as it is          |
    | `Compression.bf16` | bfloat16: 8 bits, any size | as it is          |

The transports add 16-bit floats in float32 and round once, so the error of a reduction is one
rounding on the way in and one on the way out, whatever the number of ranks.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """A pair of functions around a reduction; derive from it to make another.

    `compress` gives the tensor that travels and a context; `decompress` takes the reduced tensor
    and that context, and gives a tensor of the original dtype. Both are static, as a compressor is
    passed as a class.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Casts wide real floats to a narrow dtype; other tensors travel as they are."""

    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor in the narrow dtype, and its own dtype."""
        # A 16-bit tensor would gain nothing, and between the two formats it would lose.
        if tensor.is_floating_point() and tensor.element_size() > cls.dtype.itemsize:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own dtype again."""
        return tensor.to(ctx)


class FP16Compressor(CastCompressor):
    """float16 on the way: 11 significant bits, overflows beyond 65504."""

    dtype = torch.float16


class BF16Compressor(CastCompressor):
    """bfloat16 on the way: 8 significant bits, the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
