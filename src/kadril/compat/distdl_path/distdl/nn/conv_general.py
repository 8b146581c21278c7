"""Convolutions whose channels, and whose feature space, are split.

P_x  1    x P_ci x S          x --halo--> --broadcast--> conv on P_w --sum-reduce--> y
P_y  1    x P_co x S
P_w  P_co x P_ci x S          weights at the origin of S, biases at the origin of P_ci x S
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape, worker_layout
from .broadcast import Broadcast
from .conv_settings import ConvModule
from .stored import store
from .sum_reduce import SumReduce

__all__ = ["DistributedGeneralConv1d", "DistributedGeneralConv2d", "DistributedGeneralConv3d"]


class DistributedGeneralConvBase(ConvModule):
    """A convolution with split channels and feature space.

    Args:
        P_x: of the input, 1 x P_ci x S.
        P_y: of the output, 1 x P_co x S.
        P_w: of the weights, P_co x P_ci x S.
        in_channels: of the global input.
        out_channels: of the global output.
        kernel_size, stride, padding, padding_mode, dilation, bias: as torch's; where S has several
            workers they pad with zeros, or circular.
        groups: 1 where channels are split.
        buffer_manager: not needed here.

    Attributes:
        weight: this worker's block of the weights at the origin of S; without elements elsewhere.
        bias: the same, at the origin of P_ci x S.
        stores_weight: whether this worker has some.
        stores_bias: whether this worker has some.

    Raises:
        ValueError: the partitions do not fit together, or groups of split channels.
        NotImplementedError: another mode of padding, where S has several workers.
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
        num_out, _, *space = (int(length) for length in P_w.shape)
        # Without an axis for the batch, and with one for the channels that are summed over.
        P_y_sum = P_y.create_cartesian_topology_partition([num_out, 1, *space])
        self.x_broadcast = Broadcast(P_x, P_w)
        self.y_sum_reduce = SumReduce(P_w, P_y_sum)
        self._exchange = self._exchanger(P_x._core)
        self._is_exchanged = any(length > 1 for length in space)

    def _check_partitions(
        self, P_x: MPICartesianPartition, P_y: MPICartesianPartition, P_w: MPICartesianPartition
    ) -> None:
        what = type(self).__name__
        x, y, w = ([int(length) for length in P.shape] for P in (P_x, P_y, P_w))
        num_axes = self.num_dimensions + 2
        fits = (
            len(x) == len(y) == len(w) == num_axes
            and x == [1, w[1], *w[2:]]
            and y == [1, w[0], *w[2:]]
        )
        if not fits:
            raise ValueError(
                f"{what}: P_w must be P_co x P_ci x S, P_x 1 x P_ci x S and P_y 1 x P_co x S with"
                f" {num_axes} axes each; got P_w {w}, P_x {x} and P_y {y}"
            )
        if self.groups != 1 and w[0] * w[1] > 1:
            raise ValueError(f"{what}: groups={self.groups} of channels that are split")

    def _make_parameters(self) -> None:
        """Draw what this worker keeps, and make the broadcasts of it."""
        P_w = self.P_w
        num_out, num_in, *space = (int(length) for length in P_w.shape)
        workers = worker_layout(P_w.shape).reshape(num_out, num_in, -1)
        ones = [1] * len(space)
        self.P_wr = P_w.create_partition_inclusive(
            workers[:, :, 0].ravel()
        ).create_cartesian_topology_partition([num_out, num_in, *ones])
        self.P_b = P_w.create_partition_inclusive(
            workers[:, 0].ravel()
        ).create_cartesian_topology_partition([num_out, 1, *space])
        self.P_br = P_w.create_partition_inclusive(
            workers[:, 0, 0].ravel()
        ).create_cartesian_topology_partition([num_out, 1, *ones])
        self.receives_weight = P_w.active
        self.stores_weight = self.P_wr.active
        self.receives_bias = self.P_b.active and self.use_bias
        self.stores_bias = self.P_br.active and self.use_bias
        self.w_broadcast = Broadcast(self.P_wr, P_w, preserve_batch=False)
        self.b_broadcast = Broadcast(self.P_br, self.P_b, preserve_batch=False)
        if not P_w.active:
            store(self, "weight", torch.empty(0), False)
            store(self, "bias", torch.empty(0) if self.use_bias else None, False)
            return
        num_local_out, num_local_in = compute_subshape(
            [num_out, num_in], P_w.index[:2], [self.out_channels, self.in_channels]
        ).tolist()
        drawn = self._drawn(num_local_in, num_local_out, self.use_bias)
        store(self, "weight", drawn.weight, self.stores_weight)
        store(self, "bias", drawn.bias, self.stores_bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the convolution's output on `P_y`."""
        if not (self.P_x.active or self.P_y.active or self.P_w.active):
            return input.clone()
        x = input if self._exchange is None else self._exchange(input)
        x = self.x_broadcast(x)
        if self.P_w.active:
            weight = self.w_broadcast(self.weight)
            bias = self.b_broadcast(self.bias) if self.receives_bias else None
            x = self._convolve(x if self._is_exchanged else self._pad(x), weight, bias)
        y: torch.Tensor = self.y_sum_reduce(x)
        return y


class DistributedGeneralConv1d(DistributedGeneralConvBase):
    """One dim of features."""

    num_dimensions = 1


class DistributedGeneralConv2d(DistributedGeneralConvBase):
    """Two dims of features."""

    num_dimensions = 2


class DistributedGeneralConv3d(DistributedGeneralConvBase):
    """Three dims of features."""

    num_dimensions = 3
