"""Batch norm over all workers of a partition.

Running statistics have shape [1, C, 1, ...], are kept on every worker, and take the *biased*
variance of the batch; torch takes the unbiased one.
"""

from __future__ import annotations

import math

import torch

from kadril import ops
from kadril.ops.structure import agree

from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape, worker_layout
from .broadcast import Broadcast
from .stored import Storing, store

__all__ = ["DistributedBatchNorm"]

CHANNEL = 1


class DistributedBatchNorm(Storing):
    """Batch norm; any axis may be split, that of the channels too.

    Args:
        P_x: of input and output; one axis for each dim.
        num_features: channels of the global input.
        eps: added to the variance.
        momentum: of the running statistics; None for the plain average of all batches.
        affine: whether there are `gamma` and `beta`.
        track_running_stats: whether there are running statistics.

    Attributes:
        gamma: this worker's block of the scales, where the positions along all other axes are 0;
            without elements elsewhere.
        beta: the same, of the shifts.
        P_sum: the workers that have them; `P_affine` is another name of it.

    Raises:
        ValueError: fewer than two axes.
    """

    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None

    def __init__(
        self,
        P_x: MPICartesianPartition,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.num_dimensions = len(P_x.shape)
        if self.num_dimensions < 2:
            raise ValueError(
                "DistributedBatchNorm: P_x needs an axis for the batch and one for the channels"
            )
        self.P_x = P_x
        self.num_features, self.eps, self.momentum = int(num_features), eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.inputs_seen = 0
        self._core = P_x._core
        lengths = [int(length) for length in P_x.shape]
        at_origin = tuple(slice(None) if axis == CHANNEL else 0 for axis in range(len(lengths)))
        self.P_sum = P_x.create_partition_inclusive(
            worker_layout(lengths)[at_origin]
        ).create_cartesian_topology_partition(self._along_channels(lengths[CHANNEL]))
        self.P_affine = self.P_sum
        self.bc_affine = Broadcast(self.P_sum, P_x, preserve_batch=False)
        self.local_num_features = 0
        if P_x.active:
            self.local_num_features = int(
                compute_subshape(lengths[CHANNEL], P_x.index[CHANNEL], self.num_features)[0]
            )
        shape = self._along_channels(self.local_num_features)
        self.register_buffer("running_mean", torch.zeros(shape) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(shape) if track_running_stats else None)
        store(self, "gamma", torch.ones(shape) if affine else None, self.P_sum.active)
        store(self, "beta", torch.zeros(shape) if affine else None, self.P_sum.active)

    def _along_channels(self, length: int) -> list[int]:
        return [length if axis == CHANNEL else 1 for axis in range(self.num_dimensions)]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Y = gamma * (x - mean) / sqrt(var + eps) + beta, over the global tensor."""
        if self._core is None or not self._core.active:
            return input.clone()
        if self.training or self.running_mean is None or self.running_var is None:
            mean, var = self._statistics(input)
            if self.training and self.track_running_stats:
                self._update_running_stats(mean.detach(), var.detach())
        else:
            mean, var = self.running_mean, self.running_var
        y = (input - mean) / torch.sqrt(var + self.eps)
        if self.affine:
            y = self.bc_affine(self.gamma) * y + self.bc_affine(self.beta)
        return y

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance of each channel, over all workers."""
        assert self._core is not None  # noqa: S101 - forward asked
        what = type(self).__name__
        sizes = [blocks[-1].stop for blocks in agree(self._core, x, what).blocks(what)]
        if sizes[CHANNEL] != self.num_features:
            raise ValueError(
                f"{what}: dim {CHANNEL} of the input has {sizes[CHANNEL]} elements, and"
                f" num_features is {self.num_features}"
            )
        count = math.prod(sizes) // sizes[CHANNEL]
        mean = self._total(x) / count
        return mean, self._total((x - mean) ** 2) / count

    def _total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all dims but that of the channels, on each worker."""
        assert self._core is not None  # noqa: S101 - forward asked
        dims = [dim for dim in range(self.num_dimensions) if dim != CHANNEL]
        local = x.sum(dims, keepdim=True)
        return ops.all_sum_reduce(local, self._core, axes_keep=(CHANNEL,), what=type(self).__name__)

    def _update_running_stats(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        assert self.running_mean is not None  # noqa: S101 - there are statistics
        assert self.running_var is not None  # noqa: S101
        self.inputs_seen += 1
        share = self.momentum if self.momentum else 1 / self.inputs_seen
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(var.to(self.running_var.dtype), share)
