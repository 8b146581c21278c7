"""Losses. The value is on the first worker, and 0.0 on all others; each calls `backward()`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from ..backends.mpi.partition import MPIPartition
from ..functional import ZeroVolumeCorrectorFunction
from .module import Module
from .nothing import without_elements
from .sum_reduce import SumReduce

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
        P_x: of input and target.
        reduction: "mean", "sum", or "none" for the block of each worker.

    Raises:
        ValueError: another reduction.
    """

    BaseLossLayer: Any
    _valid_reductions: ClassVar[list[str]] = ["none", "mean", "sum"]

    def __init__(self, P_x: MPIPartition, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self._valid_reductions:
            raise ValueError(
                f"{type(self).__name__}: reduction must be one of"
                f" {', '.join(self._valid_reductions)}, got {reduction!r}"
            )
        self.P_x = P_x
        self.reduction = reduction
        self.local_loss_function = self.BaseLossLayer(
            reduction="none" if reduction == "none" else "sum"
        )
        first = P_x.create_partition_inclusive([0])
        self.P_0 = first.create_cartesian_topology_partition([1] * P_x.dim)
        self.sum_reduce = SumReduce(P_x, self.P_0, preserve_batch=False)

    def forward(self, local_input: torch.Tensor, local_target: torch.Tensor) -> torch.Tensor:
        """The loss on the first worker, 0.0 elsewhere; blocks where nothing is reduced."""
        if not self.P_x.active:
            if self.reduction == "none":
                return local_input.clone()
            # What came before may need this worker in its backward pass.
            return ZeroVolumeCorrectorFunction.apply(without_elements(local_input))
        local = self.local_loss_function(local_input, local_target)
        if self.reduction == "none":
            result: torch.Tensor = local
            return result
        count = self._count(local_input)
        total = self.sum_reduce(local.reshape(1))
        if self.P_0.active:
            total = total[0] / count
        return ZeroVolumeCorrectorFunction.apply(total)

    def _count(self, x: torch.Tensor) -> int:
        """What the sum is divided by."""
        if self.reduction == "mean":
            return int(self.P_x.allreduce_data(np.array([x.numel()], dtype=np.int64))[0])
        if self.reduction == "batchmean":
            # Along the batch, the workers at the origin of all other axes have the whole.
            is_first = not np.any(np.atleast_1d(self.P_x.index)[1:])
            mine = np.array([x.shape[0] if is_first else 0], dtype=np.int64)
            return int(self.P_x.allreduce_data(mine)[0])
        return 1


class DistributedL1Loss(DistributedLossBase):
    """Absolute differences."""

    BaseLossLayer = torch.nn.L1Loss


class DistributedMSELoss(DistributedLossBase):
    """Squared differences."""

    BaseLossLayer = torch.nn.MSELoss


class DistributedPoissonNLLLoss(DistributedLossBase):
    """Poisson's log likelihood."""

    BaseLossLayer = torch.nn.PoissonNLLLoss


class DistributedBCELoss(DistributedLossBase):
    """Binary cross entropy."""

    BaseLossLayer = torch.nn.BCELoss


class DistributedBCEWithLogitsLoss(DistributedLossBase):
    """Binary cross entropy of logits."""

    BaseLossLayer = torch.nn.BCEWithLogitsLoss


class DistributedKLDivLoss(DistributedLossBase):
    """Kullback and Leibler's divergence; "batchmean" divides by the size of the batch."""

    BaseLossLayer = torch.nn.KLDivLoss
    _valid_reductions: ClassVar[list[str]] = ["none", "mean", "sum", "batchmean"]
