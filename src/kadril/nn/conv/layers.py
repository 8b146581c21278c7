"""Partitioned convolutions: the same result as torch's, with the tensor spread over workers.

| form | partitions | what each worker holds of the weight |
|---|---|---|
| feature | P_x = batch x 1 x S | all of it |
| channel | P_x = batch x in x 1.., P_y = batch x out x 1.., P_w = out x in x 1.. | its block |
| general | P_x = batch x in x S, P_y = batch x out x S, P_w = out x in x S | its block |

`DistributedConv1d`, `2d` and `3d` choose the form by the partitions that they are given. Where the
batch is split, P_w of the last two has an axis for it before the others.

Forward and adjoint are in `conv/feature.py` and `conv/general.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd
from typing_extensions import Self

from kadril.nn.conv.feature import FeatureConv
from kadril.nn.conv.general import ChannelConv, GeneralConv
from kadril.nn.conv.input import ConvInput
from kadril.nn.conv.layer import ConvLayer, Forms, Size, form_for
from kadril.nn.sharing import same_on_all
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
        kernel_size: for each spatial dim, or for all.
        stride: likewise.
        padding: likewise, or "same" or "valid"; of the whole tensor.
        dilation: likewise.
        groups: into which channels are divided.
        bias: whether there is one.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: of the parameters.
        dtype: of the parameters.
        P_y: where the output is, if channels are split.
        P_w: where the weight is, if channels are split.
        overlap: whether halos are exchanged in a thread while the block is convolved, wherever
            padding, stride and cut allow it; None for where that pays: large blocks, and another
            transport than shared memory. In the feature form only.

    Making one is collective over the workers that hold the weight; with `P_y` and `P_w`, over the
    world. Parameters are drawn by torch, and then given by the first worker to all. So are saving
    and loading: with `P_y` and `P_w`, `state_dict()` is to be called on all ranks of the world, and
    has whole parameters on each.

    Raises:
        ValueError: partitions that do not fit to each other or to the layer, or settings that torch
            refuses; on all ranks.

    Attributes:
        input: gives each worker the part of the input that its outputs are made of.
    """

    input: ConvInput
    overlap: bool | None

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
        self.overlap = overlap
        make: Any = self.torch_class  # whose signatures want tuples where sequences do
        layer = make(
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
        same_on_all(P_x if P_w is None else P_w, [layer.weight, layer.bias])
        self._set_up(layer, P_x, P_y, P_w, None)

    @classmethod
    def of(
        cls,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        *,
        what: str | None = None,
        overlap: bool | None = None,
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
            overlap: as of the class.

        Raises:
            TypeError: not a layer of this kind.
            ValueError: as of the class.
        """
        cls._check_kind(layer)
        form = form_for(cls, FORMS, P_x, P_y, P_w)
        twin: Self = object.__new__(form)
        torch.nn.Module.__init__(twin)
        twin.overlap = overlap
        twin._set_up(layer, P_x, P_y, P_w, what)
        return twin.train(layer.training)


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


class DistributedFeatureConv1d(FeatureConv, DistributedConv1d):
    """The feature form."""


class DistributedFeatureConv2d(FeatureConv, DistributedConv2d):
    """The feature form."""


class DistributedFeatureConv3d(FeatureConv, DistributedConv3d):
    """The feature form."""


class DistributedChannelConv1d(ChannelConv, DistributedConv1d):
    """The channel form."""


class DistributedChannelConv2d(ChannelConv, DistributedConv2d):
    """The channel form."""


class DistributedChannelConv3d(ChannelConv, DistributedConv3d):
    """The channel form."""


class DistributedGeneralConv1d(GeneralConv, DistributedConv1d):
    """The general form."""


class DistributedGeneralConv2d(GeneralConv, DistributedConv2d):
    """The general form."""


class DistributedGeneralConv3d(GeneralConv, DistributedConv3d):
    """The general form."""


FORMS: Forms = {
    DistributedConv1d: (
        DistributedFeatureConv1d,
        DistributedChannelConv1d,
        DistributedGeneralConv1d,
    ),
    DistributedConv2d: (
        DistributedFeatureConv2d,
        DistributedChannelConv2d,
        DistributedGeneralConv2d,
    ),
    DistributedConv3d: (
        DistributedFeatureConv3d,
        DistributedChannelConv3d,
        DistributedGeneralConv3d,
    ),
}
