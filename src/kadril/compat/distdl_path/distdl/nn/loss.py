"""Losses. The value is on the first worker, and 0.0 on all others; each calls `backward()`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from kadril import nn
from kadril.partition import Partition

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
    """A loss that is a sum, or an average, over the elements of all workers.

    DistDL takes any blocks on any partition: workers add up what they have, whether or not their
    blocks tile a tensor. So blocks are flat here, side by side on a partition of one axis.

    Args:
        P_x: workers that have input and target.
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
        self._beneath = flat_partition(P_x)
        self._loss: Any = None
        if self._beneath is not None:
            summed = "sum" if reduction == "batchmean" else reduction
            self._loss = self._layer_class(self._beneath, reduction=summed, what=what)

    def forward(self, local_input: torch.Tensor, local_target: torch.Tensor) -> torch.Tensor:
        """Return the loss on the first worker, 0.0 elsewhere; blocks where nothing is reduced."""
        if self._beneath is None or not self._beneath.active:
            if self.reduction == "none":
                return local_input.clone()
            # What came before may need this worker in its backward pass.
            return ZeroVolumeCorrectorFunction.apply(as_zero_volume(local_input))
        x, target = torch.broadcast_tensors(local_input, local_target)  # type: ignore[no-untyped-call]
        value: torch.Tensor = self._loss(x.reshape(-1), target.reshape(-1))
        if self.reduction == "none":
            return value.reshape(x.shape)
        if self.reduction == "batchmean":
            value = value / self._batch_size(local_input)
        value = keep_on_owner(value, self._beneath.group, type(self).__name__)
        return ZeroVolumeCorrectorFunction.apply(value)

    def _batch_size(self, x: torch.Tensor) -> int:
        """Return the size of the batch: along it, workers first on all other axes have it all."""
        is_first = not np.any(np.atleast_1d(self.P_x.index)[1:])
        mine = np.array([x.shape[0] if is_first else 0], dtype=np.int64)
        return int(self.P_x.allreduce_data(mine)[0])


def flat_partition(P_x: MPIPartition) -> Partition | None:
    """Return the workers of a partition on one axis; None where it has no partition beneath."""
    core = partition_beneath(P_x)
    return None if core is None else core.create_cartesian_topology_partition([core.size])


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
