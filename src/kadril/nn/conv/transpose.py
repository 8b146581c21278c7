"""Partitioned transposed convolutions: the same result as torch's, spread over workers.

The forms, and the partitions that call for them, are those of the convolutions (`layers.py`).
Forward and adjoint are in `transpose_feature.py` and `transpose_general.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.conv import _ConvTransposeNd
from typing_extensions import Self

from kadril.nn.conv.layer import Forms, Size, form_for
from kadril.nn.conv.transpose_feature import FeatureConvTranspose
from kadril.nn.conv.transpose_general import ChannelConvTranspose, GeneralConvTranspose
from kadril.nn.conv.transpose_layer import ConvTransposeLayer
from kadril.nn.sharing import same_on_all
from kadril.partition import Partition

__all__ = [
    "DistributedChannelConvTranspose1d",
    "DistributedChannelConvTranspose2d",
    "DistributedChannelConvTranspose3d",
    "DistributedConvTranspose1d",
    "DistributedConvTranspose2d",
    "DistributedConvTranspose3d",
    "DistributedFeatureConvTranspose1d",
    "DistributedFeatureConvTranspose2d",
    "DistributedFeatureConvTranspose3d",
    "DistributedGeneralConvTranspose1d",
    "DistributedGeneralConvTranspose2d",
    "DistributedGeneralConvTranspose3d",
]


class DistributedConvTranspose(ConvTransposeLayer):
    """A partitioned transposed convolution, in the form that the partitions call for.

    The arguments after `P_x` are those of the torch layer, in its order.

    Args:
        P_x: where the input is.
        in_channels: of the whole input.
        out_channels: of the whole output.
        kernel_size: for each spatial dim, or for all.
        stride: likewise.
        padding: likewise; outputs that are cut off at both ends of the whole tensor.
        output_padding: likewise; outputs more at the last end.
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
        ValueError: partitions that do not fit to each other or to the layer, or settings that torch
            refuses; on all ranks.
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Choose the form."""
        form = form_for(
            cls,
            FORMS,
            arguments[0] if arguments else keywords.get("P_x"),
            keywords.get("P_y"),
            keywords.get("P_w"),
        )
        chosen: Self = super().__new__(form)
        return chosen

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
        make: Any = self.torch_class  # whose signatures want tuples where sequences do
        layer = make(
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
        same_on_all(P_x if P_w is None else P_w, [layer.weight, layer.bias])
        self._set_up(layer, P_x, P_y, P_w, None)

    @classmethod
    def of(
        cls,
        layer: _ConvTransposeNd,
        P_x: Partition,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        *,
        what: str | None = None,
    ) -> Self:
        """The twin of a torch layer.

        In the feature form it takes over the parameters themselves; in the others, copies of this
        worker's blocks. They must be the same on all ranks.

        Args:
            layer: the torch layer.
            P_x: where the input is.
            P_y: where the output is, if channels are split.
            P_w: where the weight is, if channels are split.
            what: its name in errors.

        Raises:
            TypeError: not a layer of this kind.
            ValueError: as of the class.
        """
        cls._check_kind(layer)
        twin: Self = object.__new__(form_for(cls, FORMS, P_x, P_y, P_w))
        torch.nn.Module.__init__(twin)
        twin._set_up(layer, P_x, P_y, P_w, what)
        return twin.train(layer.training)


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


class DistributedFeatureConvTranspose1d(FeatureConvTranspose, DistributedConvTranspose1d):
    """The feature form."""


class DistributedFeatureConvTranspose2d(FeatureConvTranspose, DistributedConvTranspose2d):
    """The feature form."""


class DistributedFeatureConvTranspose3d(FeatureConvTranspose, DistributedConvTranspose3d):
    """The feature form."""


class DistributedChannelConvTranspose1d(ChannelConvTranspose, DistributedConvTranspose1d):
    """The channel form."""


class DistributedChannelConvTranspose2d(ChannelConvTranspose, DistributedConvTranspose2d):
    """The channel form."""


class DistributedChannelConvTranspose3d(ChannelConvTranspose, DistributedConvTranspose3d):
    """The channel form."""


class DistributedGeneralConvTranspose1d(GeneralConvTranspose, DistributedConvTranspose1d):
    """The general form."""


class DistributedGeneralConvTranspose2d(GeneralConvTranspose, DistributedConvTranspose2d):
    """The general form."""


class DistributedGeneralConvTranspose3d(GeneralConvTranspose, DistributedConvTranspose3d):
    """The general form."""


FORMS: Forms = {
    DistributedConvTranspose1d: (
        DistributedFeatureConvTranspose1d,
        DistributedChannelConvTranspose1d,
        DistributedGeneralConvTranspose1d,
    ),
    DistributedConvTranspose2d: (
        DistributedFeatureConvTranspose2d,
        DistributedChannelConvTranspose2d,
        DistributedGeneralConvTranspose2d,
    ),
    DistributedConvTranspose3d: (
        DistributedFeatureConvTranspose3d,
        DistributedChannelConvTranspose3d,
        DistributedGeneralConvTranspose3d,
    ),
}
