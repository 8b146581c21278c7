"""Convolutions whose channels, and whose feature space, are split.

P_x  1    x P_ci x S          x --halo--> --broadcast--> conv on P_w --sum-reduce--> y
P_y  1    x P_co x S
P_w  P_co x P_ci x S          weights at the origin of S, biases at the origin of P_ci x S

The movements are those of `kadril.nn`; owners replicate their blocks along S at every call.
"""

from __future__ import annotations

from typing import Any

import torch

from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape
from .adapter import as_zero_volume, partition_beneath
from .conv_module import ConvModule

__all__ = ["DistributedGeneralConv1d", "DistributedGeneralConv2d", "DistributedGeneralConv3d"]


class DistributedGeneralConvBase(ConvModule):
    """A convolution with split channels and feature space.

    Args:
        P_x: of the input, 1 x P_ci x S.
        P_y: of the output, 1 x P_co x S.
        P_w: of the weights, P_co x P_ci x S.
        arguments, settings: see `ConvModule`; `groups` is 1 where channels are split.

    Attributes:
        weight: this worker's block of the weights at the origin of S; zero-volume elsewhere.
        bias: the same, at the origin of P_ci x S.
        stores_weight, stores_bias: whether this worker owns a block.
        receives_weight, receives_bias: whether it uses one.

    Raises:
        ValueError: the partitions do not match each other, or groups of split channels.
    """

    def __init__(
        self,
        P_x: MPICartesianPartition,
        P_y: MPICartesianPartition,
        P_w: MPICartesianPartition,
        *arguments: Any,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._check_partitions(P_x, P_y, P_w)
        self.P_x, self.P_y, self.P_w = P_x, P_y, P_w
        self.serial = P_w.size == 1
        self._make_parameters()
        partitions = in_common_group(P_x, P_y, P_w)
        self._convolve = None if partitions is None else self._convolution(*partitions)
        workers = partition_beneath(P_w)
        if workers is not None and workers.active:
            # Along the feature axes workers use the same block of the parameters.
            self._users = workers.axis_group(range(2, workers.dim))

    def _check_partitions(
        self, P_x: MPICartesianPartition, P_y: MPICartesianPartition, P_w: MPICartesianPartition
    ) -> None:
        what = type(self).__name__
        x, y, w = ([int(length) for length in P.shape] for P in (P_x, P_y, P_w))
        num_axes = self.num_dimensions + 2
        if len(w) != num_axes or x != [1, *w[1:]] or y != [1, w[0], *w[2:]]:
            raise ValueError(
                f"{what}: P_w must be P_co x P_ci x S, P_x 1 x P_ci x S and P_y 1 x P_co x S with"
                f" {num_axes} axes each; got P_w {w}, P_x {x} and P_y {y}"
            )
        if self.groups != 1 and w[0] * w[1] > 1:
            # Which block of a grouped weight a worker has is not the same in `kadril.nn`.
            raise ValueError(
                f"{what}: groups={self.groups} of channels that are split; use kadril.nn"
            )

    def _make_parameters(self) -> None:
        """Draw the blocks that this worker owns, and say who owns and who uses which."""
        P_w = self.P_w
        self.receives_weight = P_w.active
        self.stores_weight = P_w.active and not P_w.index[2:].any()
        self.receives_bias = P_w.active and self.use_bias and bool(P_w.index[1] == 0)
        self.stores_bias = self.receives_bias and self.stores_weight
        weight, bias = torch.empty(0), torch.empty(0) if self.use_bias else None
        if P_w.active:
            num_out, num_in = compute_subshape(
                P_w.shape[:2], P_w.index[:2], [self.out_channels, self.in_channels]
            ).tolist()
            drawn = self._draw(num_in, num_out)
            weight, bias = drawn.weight, drawn.bias
            self._shapes["weight"] = weight.shape
            if self.receives_bias:
                self._shapes["bias"] = bias.shape
        self._register_owned("weight", weight, self.stores_weight)
        self._register_owned("bias", bias, self.stores_bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the convolution's output on `P_y`."""
        if self._convolve is None or not any(P.active for P in (self.P_x, self.P_y, self.P_w)):
            return input.clone()
        x = input if self.P_x.active else as_zero_volume(input)
        return self._convolve(self._replicated_parameters(), x)


class DistributedGeneralConv1d(DistributedGeneralConvBase):
    """The general convolution in one feature dim."""

    num_dimensions = 1


class DistributedGeneralConv2d(DistributedGeneralConvBase):
    """The general convolution in two feature dims."""

    num_dimensions = 2


class DistributedGeneralConv3d(DistributedGeneralConvBase):
    """The general convolution in three feature dims."""

    num_dimensions = 3
