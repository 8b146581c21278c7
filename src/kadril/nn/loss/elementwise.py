"""Losses that compare input and target element by element, with both split among workers.

    loss = sum over all elements of l(x, t) / n        n: all elements ("mean"), 1 ("sum"), or the
                                                       whole batch ("batchmean", for KLDiv)
    x* = dl/dx(x, t) loss* / n                         t* likewise

Every worker gets the value, and calls `backward()`. On a rank outside of the partition it is 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from kadril.nn.loss.loss_layer import LossLayer, cut_like, global_sizes, wide
from kadril.ops.calling import uncompiled
from kadril.ops.structure import Structure
from kadril.partition import Partition

__all__ = [
    "DistributedBCELoss",
    "DistributedBCEWithLogitsLoss",
    "DistributedHuberLoss",
    "DistributedKLDivLoss",
    "DistributedL1Loss",
    "DistributedMSELoss",
    "DistributedPoissonNLLLoss",
    "DistributedSmoothL1Loss",
]


class ElementwiseLoss(LossLayer):
    """A loss that is a sum over elements.

    | | shape on each worker |
    |---|---|
    | input, target | the same block of the global tensor on `P_x` |
    | loss | a number, the same on all; with "none", the block's shape |

    Raises (when called, on all workers):
        ValueError: input and target have different blocks, or not one dim for each axis of `P_x`.
        MismatchError: the blocks do not fit together.
    """

    @uncompiled
    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Compute the loss; collective over the partition. See the class."""
        if not self.P_x.active:
            return self._nothing(input)
        structure = self._agree_on_pair(input, target)
        weights = self._weights(structure)
        if self.reduction == "none":
            kept: list[torch.Tensor] = []

            def keep() -> list[torch.Tensor]:
                kept.append(self._local(input, target, weights, "none"))
                return []

            self._totals(keep, 0)
            return kept[0]
        (total,) = self._totals(lambda: [self._local(wide(input), wide(target), weights, "sum")], 1)
        sizes = global_sizes(structure, self.what)
        num = {"sum": 1, "batchmean": sizes[0], "mean": math.prod(sizes)}[self.reduction]
        # As torch's mean of nothing: 0 / 0 is not a number.
        mean = total / num if num else total * math.nan
        return mean.to(torch.result_type(input, target))

    def _weights(self, structure: Structure) -> list[torch.Tensor | None]:
        """Return the blocks of other tensors that the loss takes."""
        return []

    def _local(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        weights: list[torch.Tensor | None],
        reduction: str,
    ) -> torch.Tensor:
        """Compute torch's loss of this worker's block."""
        raise NotImplementedError


class DistributedL1Loss(ElementwiseLoss):
    """`torch.nn.L1Loss`: l = |x - t|."""

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.l1_loss(x, target, reduction=reduction)


class DistributedMSELoss(ElementwiseLoss):
    """`torch.nn.MSELoss`: l = (x - t)^2."""

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.mse_loss(x, target, reduction=reduction)


class DistributedSmoothL1Loss(ElementwiseLoss):
    """`torch.nn.SmoothL1Loss`: l = (x - t)^2 / (2 beta) below beta, |x - t| - beta / 2 above."""

    settings = ("reduction", "beta")

    def __init__(
        self,
        P_x: Partition,
        reduction: str = "mean",
        beta: float = 1.0,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.beta = beta

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.smooth_l1_loss(x, target, reduction=reduction, beta=self.beta)


class DistributedHuberLoss(ElementwiseLoss):
    """`torch.nn.HuberLoss`: l = (x - t)^2 / 2 below delta, delta (|x - t| - delta / 2) above."""

    settings = ("reduction", "delta")

    def __init__(
        self,
        P_x: Partition,
        reduction: str = "mean",
        delta: float = 1.0,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.delta = delta

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.huber_loss(x, target, reduction=reduction, delta=self.delta)


class DistributedPoissonNLLLoss(ElementwiseLoss):
    """`torch.nn.PoissonNLLLoss`: l = exp(x) - t x, or x - t log(x + eps), and Stirling's term."""

    settings = ("log_input", "full", "eps", "reduction")

    def __init__(
        self,
        P_x: Partition,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.poisson_nll_loss(
            x, target, self.log_input, self.full, eps=self.eps, reduction=reduction
        )


class DistributedKLDivLoss(ElementwiseLoss):
    """`torch.nn.KLDivLoss`: l = t (log t - x), or exp(t) (t - x) where targets are logarithms.

    With "batchmean", the sum is divided by the size of the whole batch.
    """

    settings = ("reduction", "log_target")
    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(
        self,
        P_x: Partition,
        reduction: str = "mean",
        log_target: bool = False,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.log_target = log_target

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.kl_div(x, target, reduction=reduction, log_target=self.log_target)


class DistributedBCELoss(ElementwiseLoss):
    """`torch.nn.BCELoss`: l = -w (t log x + (1 - t) log (1 - x)).

    Args:
        P_x: one axis for each dim of the input.
        weight: w, as torch's: for the global input, to whose shape it is broadcast; the same on
            all workers, each of which uses the part for its block.
        reduction: "mean", "sum" or "none".
        what: name of the layer in errors.
    """

    settings = ("weight", "reduction")
    weight: torch.Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: torch.Tensor | None = None,
        reduction: str = "mean",
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.register_buffer("weight", weight)

    def _weights(self, structure: Structure) -> list[torch.Tensor | None]:
        return [cut_like(self.weight, structure.blocks(self.what), self.P_x, self.what)]

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        return functional.binary_cross_entropy(x, target, weights[0], reduction=reduction)


class DistributedBCEWithLogitsLoss(ElementwiseLoss):
    """`torch.nn.BCEWithLogitsLoss`: l = -w (p t log s(x) + (1 - t) log (1 - s(x))), s the sigmoid.

    Args:
        P_x: one axis for each dim of the input.
        weight: w; see `DistributedBCELoss`.
        reduction: "mean", "sum" or "none".
        pos_weight: p, broadcast as w is.
        what: name of the layer in errors.
    """

    settings = ("weight", "reduction", "pos_weight")
    weight: torch.Tensor | None
    pos_weight: torch.Tensor | None

    def __init__(
        self,
        P_x: Partition,
        weight: torch.Tensor | None = None,
        reduction: str = "mean",
        pos_weight: torch.Tensor | None = None,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def _weights(self, structure: Structure) -> list[torch.Tensor | None]:
        blocks = structure.blocks(self.what)
        return [
            cut_like(each, blocks, self.P_x, self.what) for each in (self.weight, self.pos_weight)
        ]

    def _local(self, x: Any, target: Any, weights: Any, reduction: str) -> torch.Tensor:
        weight, pos_weight = weights
        return functional.binary_cross_entropy_with_logits(
            x, target, weight, reduction=reduction, pos_weight=pos_weight
        )
