"""Zero-volume tensors, and the structure of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kadril import ops

# Programs import everything from here, and take numpy and torch along with it.
__all__ = [
    "TensorStructure",
    "distdl_padding_to_torch_padding",
    "np",
    "torch",
    "zero_volume_tensor",
]


def zero_volume_tensor(
    b: int | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Return a tensor of shape (b, 0), or (0,) where b is None."""
    return ops.zero_volume_tensor(None if b is None else int(b), dtype, requires_grad, device)


class TensorStructure:
    """Shape, dtype and requires_grad of a tensor.

    Args:
        tensor: the tensor; all three are None without one.
    """

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.shape: Any = None
        self.dtype: Any = None
        self.requires_grad: Any = None
        if tensor is not None:
            self.fill_from_tensor(tensor)

    def fill_from_tensor(self, tensor: torch.Tensor) -> None:
        """Copy shape, dtype and requires_grad of a tensor."""
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.requires_grad = tensor.requires_grad

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStructure):
            return NotImplemented
        mine, theirs = self._key(), other._key()
        return mine == theirs

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"TensorStructure({self.shape}, {self.dtype}, requires_grad={self.requires_grad})"

    def _key(self) -> tuple[object, ...]:
        shape = None if self.shape is None else tuple(int(length) for length in self.shape)
        return shape, self.dtype, self.requires_grad


def distdl_padding_to_torch_padding(
    pad: Sequence[Sequence[int]] | npt.NDArray[Any],
) -> tuple[int, ...]:
    """Return widths before and after each dim in the order of `torch.nn.functional.pad`.

    [[a0, b0], ..., [an, bn]] gives (an, bn, ..., a0, b0).
    """
    return tuple(int(width) for pair in reversed(list(pad)) for width in pair)
