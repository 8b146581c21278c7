"""The local layers in one process, written as their equations are: position by position."""

from __future__ import annotations

import torch
from torch.nn import functional


class NormalizeContrast:
    """s = x - mean of the surroundings; y = s / deviation of the surroundings."""

    def __init__(self, window: torch.Tensor) -> None:
        self.window = window

    def around(self, x: torch.Tensor) -> torch.Tensor:
        """Weighted mean over the window and all channels."""
        num_channels = x.shape[1]
        weight = self.window.to(x.dtype).expand(1, num_channels, *self.window.shape) / num_channels
        return functional.conv2d(x, weight, padding=[size // 2 for size in self.window.shape])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        s = x - self.around(x)
        variance = self.around(s * s)
        return s / torch.where(variance == 0, 1.0, variance).sqrt()


class FilterEachPosition:
    """y[:, :, i, j] is made with the filters of position i, j."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        self.weight, self.bias, self.stride, self.padding = weight, bias, stride, padding

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        below, beside = self.padding
        x = functional.pad(x, [beside, beside, below, below])
        height, width = self.weight.shape[4:]
        rows = []
        for i, along in enumerate(self.weight):
            fields = [
                x[:, :, i * self.stride[0] :, j * self.stride[1] :][:, :, :height, :width]
                for j in range(len(along))
            ]
            values = [
                (field[:, None] * filters).sum((2, 3, 4))
                for field, filters in zip(fields, along, strict=True)
            ]
            rows.append(torch.stack(values, -1))
        y = torch.stack(rows, -2)
        return y if self.bias is None else y + self.bias.permute(2, 0, 1)
