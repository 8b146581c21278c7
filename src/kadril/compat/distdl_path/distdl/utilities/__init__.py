"""Shapes, indices and dtypes."""

from . import debug, dtype, index_tricks, misc, slicing, tensor_decomposition, torch

__all__ = [
    "debug",
    "dtype",
    "index_tricks",
    "misc",
    "slicing",
    "tensor_decomposition",
    "torch",
]
