"""Convolutions whose channels, and whose feature space, are split.

P_x  1    x P_ci x S          x --halo--> --broadcast--> conv on P_w --sum-reduce--> y
P_y  1    x P_co x S
P_w  P_co x P_ci x S          weights at the origin of S, biases at the origin of P_ci x S

The movements are those of `kadril.nn`; owners replicate their blocks along S at every call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.partition import Group

from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape
from .adapter import as_zero_volume, partition_beneath
from .conv_module import ConvModule
from .owned_parameters import replicate

__all__ = ["DistributedGeneralConv1d", "DistributedGeneralConv2d", "DistributedGeneralConv3d"]


class DistributedGeneralConvBase(ConvModule):
    """A convolution with split channels and feature space.

    Args:
        P_x: of the input, 1 x P_ci x S.
        P_y: of the output, 1 x P_co x S.
        P_w: of the weights, P_co x P_ci x S.
        in_channels: of the global input.
        out_channels: of the global output.
        kernel_size, stride, padding, padding_mode, dilation, bias: as torch's.
        groups: 1 where channels are split.
        buffer_manager: not needed here.

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
        in_channels: int = 1,
        out_channels: int = 1,
        kernel_size: int | Sequence[int] = 1,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        padding_mode: str = "zeros",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        buffer_manager: object = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            padding_mode,
            dilation,
            groups,
            bias,
            buffer_manager,
        )
        self._check_partitions(P_x, P_y, P_w)
        self.P_x, self.P_y, self.P_w = P_x, P_y, P_w
        self.serial = P_w.size == 1
        self._make_parameters()
        partitions = in_common_group(P_x, P_y, P_w)
        self._convolve = None if partitions is None else self._convolution(*partitions)
        workers = partition_beneath(P_w)
        self._copies: Group | None = None
        if workers is not None and workers.active:
            # Along the feature axes workers use the same block of the parameters.
            self._copies = workers.axis_group(range(2, workers.dim))

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
        self._shapes: dict[str, torch.Size] = {}
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
        parameters = {
            name: replicate(
                getattr(self, name), shape, self._copies, f"{name} of {type(self).__name__}"
            )
            for name, shape in self._shapes.items()
            if self._copies is not None
        }
        return self._convolve(parameters, input if self.P_x.active else as_zero_volume(input))


class DistributedGeneralConv1d(DistributedGeneralConvBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedGeneralConv2d(DistributedGeneralConvBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedGeneralConv3d(DistributedGeneralConvBase):
    """Three dims of features."""

    num_dimensions = 3
