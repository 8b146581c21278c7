"""What keeps torch's own GradScaler from a trainer that reduces gradients."""

from __future__ import annotations

from typing import NoReturn

import torch

from kadril.errors import StateError

__all__ = ["ScalerGuard"]


class ScalerGuard:
    """Refuses a scaler that looks for infinities on one rank only.

    `torch.amp.GradScaler` looks at the gradients that a rank has, and calls `step()` or does not.
    Each rank has other gradients here: some would step and some would not. It hands what it has
    found to optimizers that say they can use it, and this is where it is told.
    """

    _step_supports_amp_scaling = True

    @property
    def found_inf(self) -> torch.Tensor:
        """Not there."""
        raise AttributeError("found_inf")

    @found_inf.setter
    def found_inf(self, _: torch.Tensor) -> NoReturn:
        raise StateError(
            "torch.amp.GradScaler looks for infinities in what this rank has, and other ranks have"
            " other gradients: some would step and some would not. Use"
            " kadril.sharded.GradScaler, which asks all ranks; it takes the same arguments"
        )
