"""Partitioned convolutions: the same result as torch's, with the tensor spread over workers.

`DistributedConv1d`, `2d` and `3d` choose their form by the partitions that they are given: see
`conv_form.py`. Forward and adjoint are in `feature_form.py` and `split_form.py`.
"""

from __future__ import annotations

import torch

from kadril.nn.conv.conv_layer import ConvLayer, Size
from kadril.nn.conv.convolution import Convolution
from kadril.ops.calling import uncompiled
from kadril.partition import Partition

__all__ = [
    "DistributedChannelConv1d",
    "DistributedChannelConv2d",
    "DistributedChannelConv3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedFeatureConv1d",
    "DistributedFeatureConv2d",
    "DistributedFeatureConv3d",
    "DistributedGeneralConv1d",
    "DistributedGeneralConv2d",
    "DistributedGeneralConv3d",
]


class DistributedConv(ConvLayer):
    """A partitioned convolution, in the form that the partitions call for.

    The arguments after `P_x` are those of the torch layer, in its order.

    Args:
        P_x: where the input is.
        in_channels: of the whole input.
        out_channels: of the whole output.
        kernel_size: size of the kernel, for each spatial dim or for all.
        stride: inputs from one output to the next, for each spatial dim or for all.
        padding: of the whole tensor, for each spatial dim or for all; or "same" or "valid".
        dilation: inputs from one element of the kernel to the next, for each spatial dim or for
            all.
        groups: into which channels are divided.
        bias: whether there is one.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: of the parameters.
        dtype: of the parameters.
        P_y: where the output is, if channels are split.
        P_w: where the weight is, if channels are split.
        overlap: whether halos are exchanged in a thread while the block is convolved, wherever
            padding, stride, cut and transport allow it (a warning says where they do not); None
            for where that pays: large blocks, and another transport than shared memory. In the
            feature form only.

    Making one is collective over the workers that hold the weight; with `P_y` and `P_w`, over the
    world. Parameters are drawn by torch, and then given by the first worker to all. So are saving
    and loading: with `P_y` and `P_w`, `state_dict()` is to be called on all ranks of the world, and
    has whole parameters on each.

    Raises:
        ValueError: partitions that do not match each other or the layer, or settings that torch
            refuses; on all ranks.
    """

    kind = Convolution

    def __init__(
        self,
        P_x: Partition,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        overlap: bool | None = None,
    ) -> None:
        super().__init__()
        arguments = (
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self._draw(arguments, P_x, P_y, P_w, overlap)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve; collective over the partition, or over the workers of all three partitions.

        Args:
            x: this worker's block of the input on `P_x`; a zero-volume tensor on other ranks.

        Returns:
            Its block of the output, which is balanced, on `P_x`, or on `P_y` where that is given; a
            zero-volume tensor on other ranks.

        Raises:
            ValueError: the input does not match the partitions or the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        return self._convolve(x)


class DistributedConv1d(DistributedConv):
    """`torch.nn.Conv1d` of a tensor on a partition: batch x channels x length."""

    num_spatial = 1
    torch_class = torch.nn.Conv1d


class DistributedConv2d(DistributedConv):
    """`torch.nn.Conv2d` of a tensor on a partition: batch x channels x height x width."""

    num_spatial = 2
    torch_class = torch.nn.Conv2d


class DistributedConv3d(DistributedConv):
    """`torch.nn.Conv3d` of a tensor on a partition: batch x channels x depth x height x width."""

    num_spatial = 3
    torch_class = torch.nn.Conv3d


class DistributedFeatureConv1d(DistributedConv1d):
    """The feature form of `DistributedConv1d`: see `conv_form.py`."""

    form_name = "Feature"


class DistributedFeatureConv2d(DistributedConv2d):
    """The feature form of `DistributedConv2d`: see `conv_form.py`."""

    form_name = "Feature"


class DistributedFeatureConv3d(DistributedConv3d):
    """The feature form of `DistributedConv3d`: see `conv_form.py`."""

    form_name = "Feature"


class DistributedChannelConv1d(DistributedConv1d):
    """The channel form of `DistributedConv1d`: see `conv_form.py`."""

    form_name = "Channel"


class DistributedChannelConv2d(DistributedConv2d):
    """The channel form of `DistributedConv2d`: see `conv_form.py`."""

    form_name = "Channel"


class DistributedChannelConv3d(DistributedConv3d):
    """The channel form of `DistributedConv3d`: see `conv_form.py`."""

    form_name = "Channel"


class DistributedGeneralConv1d(DistributedConv1d):
    """The general form of `DistributedConv1d`: see `conv_form.py`."""

    form_name = "General"


class DistributedGeneralConv2d(DistributedConv2d):
    """The general form of `DistributedConv2d`: see `conv_form.py`."""

    form_name = "General"


class DistributedGeneralConv3d(DistributedConv3d):
    """The general form of `DistributedConv3d`: see `conv_form.py`."""

    form_name = "General"
