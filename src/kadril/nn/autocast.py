"""Dtypes that convolutions and linear layers compute in: their own, or those of autocast."""

from __future__ import annotations

import torch

__all__ = ["autocast_dtype", "cast", "dtype_under"]


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast computes in on such a device; None where it is off."""
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def dtype_under(autocast: torch.dtype | None, dtype: torch.dtype) -> torch.dtype:
    """Return what autocast makes of a dtype; the same where it is off (None)."""
    if autocast is None or not dtype.is_floating_point or dtype == torch.float64:
        return dtype
    return autocast


def cast(x: torch.Tensor, autocast: torch.dtype | None) -> torch.Tensor:
    """Cast a tensor as autocast does; not where that is off (None)."""
    return x.to(dtype_under(autocast, x.dtype))
