"""Gradient compression: fewer bytes on the way, the caller's dtype on both ends.

| compressor         | float32, float64 travel as | everything else |
|--------------------|----------------------------|-----------------|
| `Compression.none` | themselves                 | as it is        |
| `Compression.fp16` | float16: 11 bits, to 65504 | as it is        |
| `Compression.bf16` | bfloat16: 8 bits, any size | as it is        |
"""

from __future__ import annotations

from typing import Any, ClassVar

from kadril.tensorflow.framework import tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """A pair of functions around a reduction; derive from it to make another.

    `compress` gives the tensor that travels and a context; `decompress` takes the reduced tensor
    and that context, and gives a tensor of the original dtype. A compressor is passed as a class.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Casts wide real floats to a narrow dtype; other tensors travel as they are."""

    dtype: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor in the narrow dtype, and its own dtype."""
        # A 16-bit tensor would gain nothing, and between the two formats it would lose.
        if tensor.dtype.is_floating and tensor.dtype.size > cls.dtype.size:
            return tf.cast(tensor, cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in its own dtype again."""
        return tf.cast(tensor, ctx) if tensor.dtype != ctx else tensor


class FP16Compressor(CastCompressor):
    """float16 on the way: 11 significant bits, overflows beyond 65504."""

    dtype = tf.float16


class BF16Compressor(CastCompressor):
    """bfloat16 on the way: 8 significant bits, the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
