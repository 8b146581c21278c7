"""Losses. The value is on the first worker, and 0.0 on all others; each calls `backward()`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from kadril import nn

from ..backends.mpi.partition import MPIPartition
from ..functional import ZeroVolumeCorrectorFunction
from .adapter import as_zero_volume, partition_beneath
from .module import Module
from .owned_parameters import keep_on_owner

__all__ = [
    "DistributedBCELoss",
    "DistributedBCEWithLogitsLoss",
    "DistributedKLDivLoss",
    "DistributedL1Loss",
    "DistributedMSELoss",
    "DistributedPoissonNLLLoss",
]


class DistributedLossBase(Module):
    """A loss that is a sum, or an average, over all elements of a global tensor.

    Args:
        P_x: of input and target; one axis for each dim.
        reduction: "mean", "sum", or "none" for the block of each worker.

    Raises:
        ValueError: another reduction.
    """

    _layer_class: ClassVar[Any]
    _valid_reductions: ClassVar[list[str]] = ["none", "mean", "sum"]

    def __init__(self, P_x: MPIPartition, reduction: str = "mean") -> None:
        super().__init__()
        what = type(self).__name__
        if reduction not in self._valid_reductions:
            raise ValueError(
                f"{what}: reduction must be one of {', '.join(self._valid_reductions)}, got"
                f" {reduction!r}"
            )
        self.P_x = P_x
        self.reduction = reduction
        first = P_x.create_partition_inclusive([0])
        self.P_0 = first.create_cartesian_topology_partition([1] * P_x.dim)
        self._beneath = partition_beneath(P_x)
        self._loss: Any = None
        if self._beneath is not None:
            self._loss = self._layer_class(self._beneath, reduction=reduction, what=what)

    def forward(self, local_input: torch.Tensor, local_target: torch.Tensor) -> torch.Tensor:
        """Return the loss on the first worker, 0.0 elsewhere; blocks where nothing is reduced."""
        if self._beneath is None or not self._beneath.active:
            if self.reduction == "none":
                return local_input.clone()
            # What came before may need this worker in its backward pass.
            return ZeroVolumeCorrectorFunction.apply(as_zero_volume(local_input))
        value: torch.Tensor = self._loss(local_input, local_target)
        if self.reduction == "none":
            return value
        value = keep_on_owner(value, self._beneath.group, type(self).__name__)
        return ZeroVolumeCorrectorFunction.apply(value)


class DistributedL1Loss(DistributedLossBase):
    """The absolute differences."""

    _layer_class = nn.DistributedL1Loss


class DistributedMSELoss(DistributedLossBase):
    """The squared differences."""

    _layer_class = nn.DistributedMSELoss


class DistributedPoissonNLLLoss(DistributedLossBase):
    """The negative log likelihood of Poisson's distribution."""

    _layer_class = nn.DistributedPoissonNLLLoss


class DistributedBCELoss(DistributedLossBase):
    """The binary cross entropy."""

    _layer_class = nn.DistributedBCELoss


class DistributedBCEWithLogitsLoss(DistributedLossBase):
    """The binary cross entropy of logits."""

    _layer_class = nn.DistributedBCEWithLogitsLoss


class DistributedKLDivLoss(DistributedLossBase):
    """The Kullback-Leibler divergence; "batchmean" divides by the size of the batch."""

    _layer_class = nn.DistributedKLDivLoss
    _valid_reductions: ClassVar[list[str]] = ["none", "mean", "sum", "batchmean"]
