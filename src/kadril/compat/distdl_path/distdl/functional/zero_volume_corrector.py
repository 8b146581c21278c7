"""What stands at the end of a network whose result only some workers have."""

from __future__ import annotations

import torch

from kadril.ops import correct_zero_volume

__all__ = ["ZeroVolumeCorrectorFunction"]


class ZeroVolumeCorrectorFunction:
    """Called like an autograd function, which it is in DistDL."""

    @staticmethod
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        """A copy, or the number 0 where there is nothing; `backward()` may be called on it."""
        return correct_zero_volume(tensor)
