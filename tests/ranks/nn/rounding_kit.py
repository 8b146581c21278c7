"""Bounds on how far rounded results may be from those of one process."""

from __future__ import annotations

import torch

# Unit roundoff of float64.
U = 2.0**-53


def error(got: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """Return the largest difference of two tensors of one shape and dtype."""
    assert got is not None
    assert expected is not None
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    return float((got.double() - expected.double()).abs().max()) if got.numel() else 0.0
