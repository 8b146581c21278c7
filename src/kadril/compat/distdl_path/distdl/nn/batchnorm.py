"""Batch norm over all workers of a partition.

Running statistics have shape [1, C, 1, ...], are kept on every worker, and follow the *biased*
variance of the batch; torch's, and those of `kadril.nn`, follow the unbiased one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kadril import nn
from kadril.partition import balanced_intervals

from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import worker_layout
from .adapter import partition_beneath
from .broadcast import Broadcast
from .owned_parameters import OwnedParameters

__all__ = ["DistributedBatchNorm"]

CHANNEL = 1


class DistributedBatchNorm(OwnedParameters):
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
        lengths = [int(length) for length in P_x.shape]
        at_origin = tuple(slice(None) if axis == CHANNEL else 0 for axis in range(len(lengths)))
        self.P_sum = P_x.create_partition_inclusive(
            worker_layout(lengths)[at_origin]
        ).create_cartesian_topology_partition(self._along_channels(lengths[CHANNEL]))
        self.P_affine = self.P_sum
        self.bc_affine = Broadcast(self.P_sum, P_x, preserve_batch=False)
        self.local_num_features = 0
        if P_x.active:
            channels = balanced_intervals(self.num_features, lengths[CHANNEL])
            self._channels = channels[P_x.index[CHANNEL]]
            self.local_num_features = self._channels.size
        shape = self._along_channels(self.local_num_features)
        self.register_buffer("running_mean", torch.zeros(shape) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(shape) if track_running_stats else None)
        for name, value in (("gamma", torch.ones(shape)), ("beta", torch.zeros(shape))):
            self._register_owned(name, value if affine else None, self.P_sum.active)
        beneath = partition_beneath(P_x)
        # With a momentum of 1 its running statistics are those of the last batch. In a tuple, so
        # that it is no submodule, and they are not saved.
        self._normalize: tuple[nn.DistributedBatchNorm, ...] = ()
        if beneath is not None and beneath.active:
            self._normalize = (
                nn.DistributedBatchNorm(
                    beneath, self.num_features, eps, 1.0, affine=False, what=type(self).__name__
                ),
            )

    def _along_channels(self, length: int) -> list[int]:
        return [length if axis == CHANNEL else 1 for axis in range(self.num_dimensions)]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Y = gamma * (x - mean) / sqrt(var + eps) + beta, over the global tensor."""
        if not self._normalize:
            return input.clone()
        if self.training or self.running_mean is None or self.running_var is None:
            layer = self._normalize[0].to(dtype=input.dtype)
            layer.reset_running_stats()
            y: torch.Tensor = layer(input)
            if self.training and self.track_running_stats:
                self._update_running_stats(layer, input)
        else:
            y = (input - self.running_mean) / torch.sqrt(self.running_var + self.eps)
        if self.affine:
            y = self.bc_affine(self.gamma) * y + self.bc_affine(self.beta)
        return y

    def _update_running_stats(self, layer: Any, x: torch.Tensor) -> None:
        """Let the running statistics follow those of the last batch."""
        assert self.running_mean is not None  # noqa: S101 - there are statistics
        assert self.running_var is not None  # noqa: S101
        self.inputs_seen += 1
        share = self.momentum if self.momentum else 1 / self.inputs_seen
        here = slice(*self._channels)
        num_values = int(self.P_x.allreduce_data(np.array([x.numel()]))[0]) // self.num_features
        biased = (num_values - 1) / num_values
        for running, batch in (
            (self.running_mean, layer.running_mean),
            (self.running_var, layer.running_var * biased),
        ):
            running.lerp_(batch[here].view_as(running).to(running.dtype), share)
