"""Batch normalization of a tensor whose batch, channels and space are split among workers.

    P_x = 2 x 1 x 2           w 0..3   w 4..7        statistics of a channel c are over all n
                      n 0..2  rank 0 | rank 1        and all of space, that is, over all workers
                      n 3..5  rank 2 | rank 3        that have c

    y[n, c, s] = weight[c] (x[n, c, s] - mean[c]) / sqrt(var[c] + eps) + bias[c]

The equations of both directions, and how far they are off, are in `norm/standardize.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from kadril.nn.norm.partitioned_norm import ChannelNorm
from kadril.nn.norm.standardize import Rows, Statistics, statistics_of
from kadril.nn.sharing import interval_here
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "DistributedBatchNorm",
    "DistributedBatchNorm1d",
    "DistributedBatchNorm2d",
    "DistributedBatchNorm3d",
]


class BatchNormPlan(NamedTuple):
    """Plan for one structure of the input; computed once.

    Attributes:
        channels: that this worker has.
        num_channels: at each position along the channel axis.
        rows: which rows share statistics; None where all of theirs are here.
    """

    channels: Interval
    num_channels: list[int]
    rows: Rows | None


class DistributedBatchNorm(ChannelNorm, _BatchNorm):
    """`torch.nn.BatchNorm*d` over all workers of a partition, for inputs of two or more dims.

    Parameters and running statistics are the sequential layer's, whole, on every worker, and stay
    equal; so is the `state_dict`. Running statistics follow the unbiased variance, as torch's do.

    | | shape on each worker |
    |---|---|
    | x, y | block of (N, C, ...) on `P_x`; blocks may be of any size, 0 included |
    | weight, bias, running_mean, running_var | (C,) |

    Args:
        P_x: one axis for each dim of the input: batch, channels, space. Any may be split.
        num_features: channels C.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None for their plain mean.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics.
        device: of parameters and statistics.
        dtype: of parameters and statistics.
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: the input does not have `num_features` channels, or one dim for each axis of
            `P_x`; or, in training, has one value per channel on all workers together.
        MismatchError: the blocks do not fit together.
        TypeError: the input is not of a floating-point dtype.
    """

    allowed_dims: ClassVar[tuple[int, ...] | None] = None

    def __init__(
        self,
        P_x: Partition,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self._lie_on(P_x, what, f"{num_features}")

    @classmethod
    def of(cls, layer: _BatchNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a layer, which has the very same parameters and buffers.

        Args:
            layer: a `torch.nn.BatchNorm*d`.
            P_x: where inputs lie.
            what: name of the layer in errors.
        """
        twin = cls(
            P_x,
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
            device="meta",
            what=what,
        )
        twin.weight, twin.bias = layer.weight, layer.bias
        twin.running_mean, twin.running_var = layer.running_mean, layer.running_var
        twin.num_batches_tracked = layer.num_batches_tracked
        return twin.train(layer.training)

    def _normalize(
        self, x: torch.Tensor, plan: BatchNormPlan, structure: Structure
    ) -> torch.Tensor:
        here = slice(*plan.channels)
        weight, bias = self._share([self.weight, self.bias], here)
        if not self.training and self.running_mean is not None and self.running_var is not None:
            mean, var = self.running_mean[here], self.running_var[here]
            if not x.numel():
                return empty_result(x, weight, bias)
            return functional.batch_norm(x, mean, var, weight, bias, False, 0.0, self.eps)
        self._refuse_single_values(structure)
        factor = self._count_batch()
        if plan.rows is None:
            return self._locally(x, plan, weight, bias, factor)
        matrix = self._to_rows(x)
        statistics = statistics_of(matrix, plan.rows, self.what)
        self._update_running(statistics, plan, factor)
        repeat = matrix.shape[0] // max(1, plan.channels.size)
        y = self._standardize(
            matrix,
            None if weight is None else weight.repeat(repeat),
            None if bias is None else bias.repeat(repeat),
            plan.rows,
            eps=self.eps,
            requires_grad=structure.requires_grad,
            statistics=statistics,
        )
        return y.t().contiguous() if x.dim() == 2 else y.view(x.shape)

    # ---- details --------------------------------------------------------------------------------

    def _check_partition(self) -> None:
        if self.allowed_dims is not None and self.P_x.dim not in self.allowed_dims:
            raise ValueError(
                f"{self.what}: P_x has shape {text(self.P_x.shape)}; it needs"
                f" {' or '.join(str(num) for num in self.allowed_dims)} axes"
            )
        super()._check_partition()

    def _plan(self, structure: Structure) -> BatchNormPlan:
        blocks = self._blocks_of_floats(structure)
        self._check_channels(blocks[1], self.num_features)
        channels = interval_here(self.P_x, blocks, 1)
        num_channels = [block.size for block in blocks[1]]
        others = [axis for axis in range(self.P_x.dim) if axis != 1]
        group = self.P_x.axis_group(others)
        if group.transport.size == 1 and channels.size:
            return BatchNormPlan(channels, num_channels, None)
        sizes = [
            shape
            for rank, shape in enumerate(structure.shapes)
            if self.P_x.ranks[rank] in group.ranks
        ]
        counts = torch.tensor(
            [torch.Size(shape).numel() // max(1, channels.size) for shape in sizes],
            dtype=torch.float64,
        )
        is_matrix = self.P_x.dim == 2
        repeat = 1 if is_matrix else interval_here(self.P_x, blocks, 0).size
        owner = torch.arange(channels.size).repeat(repeat)
        return BatchNormPlan(
            channels, num_channels, Rows(group, owner, counts[:, None].expand(-1, channels.size))
        )

    def _to_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows (n, c); or (c) without spatial dims, as rows of one number would be slow."""
        if x.dim() == 2:
            return x.t().contiguous()
        rows = x.shape[0] * x.shape[1]
        return x.reshape(rows, x[0, 0].numel() if rows else 0)

    def _refuse_single_values(self, structure: Structure) -> None:
        num_values = sum(torch.Size(shape).numel() for shape in structure.shapes)
        if num_values == self.num_features:
            raise ValueError(
                f"{self.what}: training needs more than one value per channel on all workers"
                f" together; rank 0 of {text(self.P_x.shape)} has a block of shape"
                f" {structure.shapes[0]}"
            )

    def _count_batch(self) -> float:
        """Count a batch; return the weight of its statistics in the running ones."""
        if not (self.training and self.track_running_stats):
            return 0.0
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _locally(
        self,
        x: torch.Tensor,
        plan: BatchNormPlan,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        factor: float,
    ) -> torch.Tensor:
        """Use torch's batch norm, for channels that are whole here."""
        is_tracked = self.training and self.track_running_stats
        mean = var = None
        if is_tracked and self.running_mean is not None and self.running_var is not None:
            here = slice(*plan.channels)
            mean, var = self.running_mean[here], self.running_var[here]
        y = functional.batch_norm(x, mean, var, weight, bias, True, factor, self.eps)
        if mean is not None and var is not None:
            self._gather_channels(plan)
        return y

    def _update_running(self, statistics: Statistics, plan: BatchNormPlan, factor: float) -> None:
        """Update the running statistics by those of a batch."""
        is_tracked = self.training and self.track_running_stats
        if not is_tracked or self.running_mean is None or self.running_var is None:
            return
        here = slice(*plan.channels)
        unbiased = statistics.var * (statistics.num_values / (statistics.num_values - 1))
        with torch.no_grad():
            for running, value in (
                (self.running_mean[here], statistics.mean),
                (self.running_var[here], unbiased),
            ):
                running.copy_((1 - factor) * running.double() + factor * value)
        self._gather_channels(plan)

    def _gather_channels(self, plan: BatchNormPlan) -> None:
        """Exchange running statistics between workers that have different channels."""
        if len(plan.num_channels) == 1 or self.running_mean is None or self.running_var is None:
            return
        transport = self.P_x.axis_group([1]).transport
        here = slice(*plan.channels)
        for running in (self.running_mean, self.running_var):
            mine = running[here].clone()
            transport.allgatherv(mine, running, plan.num_channels, name=f"{self.what} statistics")


def empty_result(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the result for an empty block, which torch refuses, with a graph for backward."""
    for each in (weight, bias):
        if each is not None:
            x = x * each.view(1, -1, *[1] * (x.dim() - 2))
    return x.clone()


class DistributedBatchNorm1d(DistributedBatchNorm):
    """`DistributedBatchNorm` for inputs of shape (N, C) or (N, C, L)."""

    allowed_dims = (2, 3)


class DistributedBatchNorm2d(DistributedBatchNorm):
    """`DistributedBatchNorm` for inputs of shape (N, C, H, W)."""

    allowed_dims = (4,)


class DistributedBatchNorm3d(DistributedBatchNorm):
    """`DistributedBatchNorm` for inputs of shape (N, C, D, H, W)."""

    allowed_dims = (5,)
