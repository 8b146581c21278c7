"""Cross entropy and negative log-likelihood, with batch, space and classes split among workers.

    classes on axis 1:    | 0 1 2 | 3 4 |        Each worker adds what it has of
                            w. 0    w. 1
                                                 sum_n -w[t_n] log p[n, t_n]      t_n: class of n

The class of every n is with one worker along the class axis, so parts add up to the whole, and so
do the weights w[t_n] that a mean is divided by.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from kadril import ops
from kadril.nn.loss.log_softmax import log_softmax
from kadril.nn.loss.loss_layer import LossLayer, global_sizes, wide
from kadril.ops.calling import uncompiled
from kadril.ops.structure import Structure, agree
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

__all__ = ["DistributedCrossEntropyLoss", "DistributedNLLLoss"]


class ClassLoss(LossLayer):
    """Base of the losses of classes."""

    settings: ClassVar[tuple[str, ...]] = ("weight", "ignore_index", "reduction")
    weight: torch.Tensor | None
    label_smoothing = 0.0

    def __init__(
        self,
        P_x: Partition,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, reduction, what=what)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        if P_x.dim < 2:
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs axes for batch and"
                " classes at least"
            )

    @uncompiled
    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Compute the loss; collective over the partition. See the class."""
        if not self.P_x.active:
            return self._nothing(input)
        structure = agree(self.P_x, input, f"input of {self.what}")
        sizes = global_sizes(structure, f"input of {self.what}")
        if self.weight is not None and tuple(self.weight.shape) != (sizes[1],):
            raise ValueError(
                f"{self.what}: the input has {sizes[1]} classes in dim 1, along axis 1 of"
                f" {text(self.P_x.shape)}; weight has shape {tuple(self.weight.shape)}"
            )
        other = agree(self.P_x, target, f"target of {self.what}")
        is_probability = self._check_target(other, structure)
        classes = structure.blocks(self.what)[1]
        if self.P_x.index is None:
            raise AssertionError("only workers of the partition come here")
        here = classes[self.P_x.index[1]]
        log_p = self._log_probabilities(wide(input), structure.requires_grad)
        if is_probability:
            loss = self._of_probabilities(log_p, wide(target), here, sizes)
        else:
            loss = self._of_classes(log_p, target, here, sizes[1])
        return loss.to(input.dtype)

    def _log_probabilities(self, x: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        return x

    def _check_target(self, target: Structure, x: Structure) -> bool:
        """Check the target; return whether it holds probabilities."""
        if target.dtype != torch.int64:
            raise TypeError(
                f"{self.what}: the target must have classes as torch.int64, got {target.dtype}"
            )
        wanted = [(shape[0], *shape[2:]) for shape in x.shapes]
        self._refuse_other_shapes(target.shapes, wanted)
        return False

    def _per_class(self, here: Interval, num_dims: int, like: torch.Tensor) -> torch.Tensor | None:
        """Return the weights of this worker's classes, shaped to be broadcast to the input."""
        if self.weight is None:
            return None
        return self.weight[slice(*here)].to(like.dtype).view(1, -1, *[1] * (num_dims - 2))

    def _of_classes(
        self, log_p: torch.Tensor, target: torch.Tensor, here: Interval, num_classes: int
    ) -> torch.Tensor:
        counted = target != self.ignore_index
        mine = counted & (target >= here.start) & (target < here.stop)
        local = (target - here.start).where(mine, torch.zeros_like(target))
        if here.size:
            picked = log_p.gather(1, local.unsqueeze(1)).squeeze(1)
            weights = torch.ones_like(picked)
            if self.weight is not None:
                weights = self.weight[slice(*here)].to(log_p.dtype)[local]
        else:
            weights = picked = log_p.sum(1)
        zero = log_p.new_zeros(())
        parts = [torch.where(mine, -picked * weights, zero)]
        if self.label_smoothing:
            per_class = self._per_class(here, log_p.dim(), log_p)
            weighted = log_p if per_class is None else log_p * per_class
            parts.append(torch.where(counted, -weighted.sum(1), zero))
        shares = (1.0 - self.label_smoothing, self.label_smoothing / num_classes)

        def compute() -> list[torch.Tensor]:
            self._refuse_wrong_classes(target[counted], num_classes)
            if self.reduction == "none":
                return []
            weight_here = torch.where(mine, weights.detach(), zero)
            return [*(part.sum() for part in parts), weight_here.sum()]

        sums = self._totals(compute, 0 if self.reduction == "none" else len(parts) + 1)
        used = parts if self.reduction == "none" else sums[:-1]
        loss = sum((part * share for part, share in zip(used, shares, strict=False)), zero)
        if self.reduction == "none":
            return self._per_position(loss)
        return loss / sums[-1] if self.reduction == "mean" else loss

    def _refuse_wrong_classes(self, classes: torch.Tensor, num_classes: int) -> None:
        if not classes.numel():
            return
        low, high = (int(each) for each in torch.aminmax(classes))
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise IndexError(
                f"{self.what}: class {wrong} is out of range; classes are 0 to {num_classes - 1}"
            )

    def _of_probabilities(
        self, log_p: torch.Tensor, target: torch.Tensor, here: Interval, sizes: list[int]
    ) -> torch.Tensor:
        if self.label_smoothing:
            target = target * (1.0 - self.label_smoothing) + self.label_smoothing / sizes[1]
        per_class = self._per_class(here, log_p.dim(), log_p)
        elements = -log_p * target if per_class is None else -log_p * target * per_class
        if self.reduction == "none":
            return self._per_position(elements.sum(1))
        (loss,) = self._totals(lambda: [elements.sum()], 1)
        return loss / (math.prod(sizes) // sizes[1]) if self.reduction == "mean" else loss

    def _per_position(self, parts: torch.Tensor) -> torch.Tensor:
        """Sum the parts of all classes; the sum is the same on all workers along the class axis."""
        return ops.total(parts, self.P_x.axis_group([1]), what=f"sum of {self.what}")


class DistributedNLLLoss(ClassLoss):
    """`torch.nn.NLLLoss` of log-probabilities that are split among workers along any dims.

    | | shape on each worker |
    |---|---|
    | input | block of (N, C, ...) on `P_x` |
    | target | classes as int64: the same block, without dim 1; the same along axis 1 |
    | loss | a number, the same on all; with "none", the target's shape, the same along axis 1 |

    Args:
        P_x: one axis for each dim of the input: batch, classes, space.
        weight: of each of the C classes; the same on all workers.
        ignore_index: class that does not count.
        reduction: "mean" (of weights), "sum" or "none".
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: shapes do not match each other or `P_x`.
        TypeError: a target of another dtype.
        IndexError: a class that does not exist; ValueError on workers that have no such class.
        MismatchError: the blocks do not fit together.
    """


class DistributedCrossEntropyLoss(ClassLoss):
    """`torch.nn.CrossEntropyLoss` of logits that are split among workers along any dims.

    As `DistributedNLLLoss` of the log-softmax over all classes (`log_softmax.py`). The target may
    have probabilities too: a floating-point block as the input's.

    Args:
        P_x: one axis for each dim of the input: batch, classes, space.
        weight: of each of the C classes; the same on all workers.
        ignore_index: class that does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the uniform distribution in the target, from 0 to 1.
        what: name of the layer in errors.

    Raises: see `DistributedNLLLoss`.
    """

    settings = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        P_x: Partition,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, weight, ignore_index, reduction, what=what)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(
                f"{self.what}: label_smoothing must be from 0 to 1, got {label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def _log_probabilities(self, x: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        group = self.P_x.axis_group([1])
        return log_softmax(x, 1, group, requires_grad=requires_grad, what=self.what)

    def _check_target(self, target: Structure, x: Structure) -> bool:
        if not target.dtype.is_floating_point:
            return super()._check_target(target, x)
        self._refuse_other_shapes(target.shapes, x.shapes)
        return True
