"""Dtypes of a convolution under autocast, for arithmetic that torch's own cast does not reach."""

from __future__ import annotations

import torch

__all__ = ["autocast_dtype", "cast"]


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast convolves in on such a device; None where it is off."""
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def cast(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Cast a tensor as autocast does for a convolution; not where that is off (None)."""
    if dtype is None or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(dtype)
