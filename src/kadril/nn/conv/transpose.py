"""Partitioned transposed convolutions: the same result as torch's, spread over workers.

The forms, and the partitions that call for them, are those of the convolutions: see `conv_form.py`.
Forward and adjoint are in `feature_form.py` and `split_form.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.nn.conv.conv_layer import ConvLayer, Size
from kadril.nn.conv.transposed_convolution import TransposedConvolution
from kadril.ops.calling import uncompiled
from kadril.partition import Partition

__all__ = [
    "DistributedConvTranspose1d",
    "DistributedConvTranspose2d",
    "DistributedConvTranspose3d",
]


class DistributedConvTranspose(ConvLayer):
    """A partitioned transposed convolution, in the form that the partitions call for.

    The arguments after `P_x` are those of the torch layer, in its order.

    Args:
        P_x: where the input is.
        in_channels: of the whole input.
        out_channels: of the whole output.
        kernel_size: size of the kernel, for each spatial dim or for all.
        stride: outputs from one input to the next, for each spatial dim or for all.
        padding: outputs that are cut off at both ends of the whole tensor, for each spatial dim or
            for all.
        output_padding: outputs more at the last end, for each spatial dim or for all.
        groups: into which channels are divided.
        bias: whether there is one.
        dilation: for each spatial dim, or for all.
        padding_mode: "zeros".
        device: of the parameters.
        dtype: of the parameters.
        P_y: where the output is, if channels are split.
        P_w: where the weight is, if channels are split: output channels before input channels.

    Making one is collective over the workers that hold the weight; with `P_y` and `P_w`, over the
    world. Parameters are drawn by torch, and then given by the first worker to all. So are saving
    and loading: with `P_y` and `P_w`, `state_dict()` is to be called on all ranks of the world, and
    has whole parameters on each.

    Raises:
        ValueError: partitions that do not match each other or the layer, or settings that torch
            refuses; on all ranks.
    """

    kind = TransposedConvolution

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
    ) -> None:
        super().__init__()
        arguments = (
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        self._draw(arguments, P_x, P_y, P_w)

    @uncompiled
    def forward(self, x: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        """Convolve; collective over the partition, or over the workers of all three partitions.

        Args:
            x: this worker's block of the input on `P_x`; a zero-volume tensor on other ranks.
            output_size: of the spatial dims of the whole output, or of all its dims; instead of
                `output_padding`.

        Returns:
            Its block of the output, which is balanced, on `P_x`, or on `P_y` where that is given; a
            zero-volume tensor on other ranks.

        Raises:
            ValueError: the input does not match the partitions or the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        return self._convolve(x, output_size)


class DistributedConvTranspose1d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose1d` of a tensor on a partition: batch x channels x length."""

    num_spatial = 1
    torch_class = torch.nn.ConvTranspose1d


class DistributedConvTranspose2d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose2d` of a tensor on a partition: batch x channels x height x width."""

    num_spatial = 2
    torch_class = torch.nn.ConvTranspose2d


class DistributedConvTranspose3d(DistributedConvTranspose):
    """`torch.nn.ConvTranspose3d` of a tensor on a partition: batch x channels x space."""

    num_spatial = 3
    torch_class = torch.nn.ConvTranspose3d
