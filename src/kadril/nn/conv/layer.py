"""What all partitioned convolutions have in common: settings, and parameters that begin alike.

The settings and the parameters are those of the torch layer of the same name: one is made, which
checks and draws them, and taken over. Drawn parameters are those of the partition's first worker;
parameters of a layer that there was before stay the objects they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.window import Window
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["ConvLayer", "Forms", "Size", "check_axes", "form_for", "windows_of"]

Size = int | Sequence[int]

# Feature, channel and general form of each layer.
Forms = dict[type[Any], tuple[type[Any], type[Any], type[Any]]]

CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


class ConvLayer(torch.nn.Module):
    """Base of the partitioned convolutions, transposed ones included.

    Attributes:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode,
        output_padding: as of the torch layer.
        weight: its parameter, or this worker's block of it.
        bias: the same; None where there is none.
        what: the name of the layer in errors.
    """

    num_spatial: ClassVar[int]
    torch_class: ClassVar[type[_ConvNd]]

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    def _adopt_settings(self, layer: _ConvNd, what: str | None) -> None:
        """Take over everything but the parameters."""
        self.in_channels = layer.in_channels
        self.out_channels = layer.out_channels
        self.kernel_size = layer.kernel_size
        self.stride = layer.stride
        self.padding = layer.padding
        self.dilation = layer.dilation
        self.groups = layer.groups
        self.padding_mode = layer.padding_mode
        self.output_padding = layer.output_padding
        self.what = f"{what or type(self).__name__}({describe(layer)})"

    def _adopt_parameters(self, layer: torch.nn.Module) -> None:
        """Take over the parameters themselves."""
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(layer, name))

    @classmethod
    def _check_kind(cls, layer: object) -> None:
        if not isinstance(layer, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.of takes a torch.nn.{cls.torch_class.__name__}, got"
                f" {type(layer).__name__}"
            )

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        """Become the twin of a torch layer, with its parameters."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The settings, as torch shows them, and where the layer is."""
        settings: dict[str, Any] = {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "padding_mode": self.padding_mode,
        }
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{self.in_channels}, {self.out_channels}, {shown}, {self._where()}"

    def _where(self) -> str:
        raise NotImplementedError


def describe(layer: _ConvNd) -> str:
    """The settings of a layer that are not torch's defaults.

    Calls bear this as their name, so ranks with different layers are found out before any data
    moves, also where messages would have the same lengths.
    """
    shown = [f"{layer.in_channels}, {layer.out_channels}, kernel {text(layer.kernel_size)}"]
    for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1)):
        value = getattr(layer, name)
        if isinstance(value, str):
            shown.append(f"{name} {value}")
        elif any(each != default for each in value):
            shown.append(f"{name} {text(value)}")
    if layer.groups != 1:
        shown.append(f"groups {layer.groups}")
    if layer.padding_mode != "zeros":
        shown.append(layer.padding_mode)
    if layer.bias is None:
        shown.append("no bias")
    return ", ".join(shown)


def windows_of(layer: ConvLayer) -> list[Window]:
    """The window along each spatial dim; padding given as a word becomes numbers."""
    windows = []
    for dim, (kernel, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        if layer.padding == "same":
            both = dilation * (kernel - 1)
            before, after = both // 2, both - both // 2
        elif layer.padding == "valid":
            before = after = 0
        else:
            before = after = int(layer.padding[dim])
        windows.append(Window(kernel, stride, dilation, before, after))
    return windows


def check_axes(what: str, name: str, partition: Partition, num_spatial: int) -> None:
    """Refuse a partition without one axis for the batch, the channels, and each spatial dim.

    Raises:
        ValueError: names the partition.
    """
    if partition.dim != num_spatial + 2:
        raise ValueError(
            f"{what}: {name} has shape {text(partition.shape)}; it needs {num_spatial + 2} axes:"
            f" batch, channels and {num_spatial} spatial"
        )


def form_for(
    cls: type[Any],
    forms: Forms,
    P_x: Partition | None,
    P_y: Partition | None,
    P_w: Partition | None,
) -> type[Any]:
    """The class for some partitions; a class that is a form already stays."""
    if cls not in forms:
        return cls
    feature, channel, general = forms[cls]
    if P_y is None and P_w is None:
        return feature
    if P_x is not None and all(length == 1 for length in P_x.shape[2:]):
        return channel
    return general
