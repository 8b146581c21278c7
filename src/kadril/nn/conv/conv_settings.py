"""The settings of a convolution, transposed or not: those of the torch layer of the same name."""

from __future__ import annotations

from typing import NamedTuple

from torch.nn.modules.conv import _ConvNd

from kadril.partition.pairing import text

__all__ = ["ConvSettings"]


class ConvSettings(NamedTuple):
    """All settings of a torch layer; for each of them see `torch.nn.Conv2d`.

    Attributes:
        padding: a number for each spatial dim, or "same" or "valid".
        output_padding: of a transposed convolution; zeros otherwise.
        has_bias: whether there is a bias.
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    output_padding: tuple[int, ...]
    has_bias: bool

    @classmethod
    def of(cls, layer: _ConvNd) -> ConvSettings:
        """Read the settings of a torch layer."""
        *names, _ = cls._fields
        return cls._make([*(getattr(layer, name) for name in names), layer.bias is not None])

    @property
    def num_spatial(self) -> int:
        """Number of spatial dims."""
        return len(self.kernel_size)

    def paddings(self) -> list[tuple[int, int]]:
        """Elements of padding before and after each spatial dim; a word becomes numbers."""
        if self.padding == "valid":
            return [(0, 0)] * self.num_spatial
        if self.padding == "same":
            widths = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            return [(width // 2, width - width // 2) for width in widths]
        return [(int(width), int(width)) for width in self.padding]

    def __str__(self) -> str:
        """The settings that are not torch's defaults.

        Calls have this as their name, so ranks with different layers are noticed before any data
        moves, also where messages would have the same lengths.
        """
        shown = [f"{self.in_channels}, {self.out_channels}, kernel {text(self.kernel_size)}"]
        for name, default in (
            ("stride", 1),
            ("padding", 0),
            ("output_padding", 0),
            ("dilation", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, str):
                shown.append(f"{name} {value}")
            elif any(each != default for each in value):
                shown.append(f"{name} {text(value)}")
        if self.groups != 1:
            shown.append(f"groups {self.groups}")
        if self.padding_mode != "zeros":
            shown.append(self.padding_mode)
        if not self.has_bias:
            shown.append("no bias")
        return ", ".join(shown)
