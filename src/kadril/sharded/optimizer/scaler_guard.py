"""A guard that refuses torch's own GradScaler for trainers that reduce gradients."""

from __future__ import annotations

from typing import NoReturn

import torch

from kadril.errors import StateError

__all__ = ["ScalerGuard"]


class ScalerGuard:
    """Refuses a scaler that looks for infinities on one rank only.

    `torch.amp.GradScaler` looks at the gradients that a rank has, and calls `step()` or does not.
    Here each rank has different gradients: some ranks would step and others would not. The scaler
    sets `found_inf` on optimizers that say they support scaling, which is where it is refused.
    """

    _step_supports_amp_scaling = True

    @property
    def found_inf(self) -> torch.Tensor:
        """Flag that is never set: setting it raises `StateError`."""
        raise AttributeError("found_inf")

    @found_inf.setter
    def found_inf(self, _: torch.Tensor) -> NoReturn:
        raise StateError(
            "torch.amp.GradScaler looks for infinities in the gradients of this rank, and other"
            " ranks have different ones: some would step and some would not. Use"
            " kadril.sharded.GradScaler, which asks all ranks; it takes the same arguments"
        )
