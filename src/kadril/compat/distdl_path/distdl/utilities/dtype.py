"""Tables of the dtypes of numpy and torch, and of numbers that stand for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = [
    "intID_to_numpy_dtype_dict",
    "intID_to_torch_dtype_dict",
    "numpy_to_intID_dtype_dict",
    "numpy_to_torch_dtype_dict",
    "torch_to_intID_dtype_dict",
    "torch_to_numpy_dtype_dict",
]

NAMES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

torch_to_numpy_dtype_dict: dict[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(name).type for name in NAMES
}
# By scalar type and by dtype object: numpy takes either.
numpy_to_torch_dtype_dict: dict[Any, torch.dtype] = {
    key: dtype
    for dtype, scalar in torch_to_numpy_dtype_dict.items()
    for key in (scalar, np.dtype(scalar))
}
numpy_to_intID_dtype_dict = {  # noqa: N816 - DistDL's name
    key: int(np.dtype(key).num) for key in numpy_to_torch_dtype_dict
}
intID_to_numpy_dtype_dict = {  # noqa: N816
    int(np.dtype(scalar).num): scalar for scalar in torch_to_numpy_dtype_dict.values()
}
torch_to_intID_dtype_dict = {  # noqa: N816
    dtype: int(np.dtype(scalar).num) for dtype, scalar in torch_to_numpy_dtype_dict.items()
}
intID_to_torch_dtype_dict = {  # noqa: N816
    number: dtype for dtype, number in torch_to_intID_dtype_dict.items()
}
