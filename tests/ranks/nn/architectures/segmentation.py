"""Networks that give a map: segmentation, pyramids, several resolutions at once."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = [
    "AttentionUNet",
    "DeepLabV3",
    "Fcn",
    "FeaturePyramid",
    "HrNet",
    "PspNet",
    "SegNet",
    "UNet",
    "UNetPlusPlus",
]


def double_conv(channels: int, width: int, padding: int = 1) -> nn.Sequential:
    """Two convolutions, each with an activation."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=padding),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=padding),
        nn.ReLU(inplace=True),
    )


def conv_norm(channels: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution, a norm, an activation."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class Fcn(nn.Module):
    """Long, Shelhamer, Darrell 2014: scores of three depths, brought together by upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.pool3 = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=8),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        )
        self.pool4 = nn.Sequential(
            nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)
        )
        self.pool5 = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)
        )
        self.score3 = nn.Conv2d(6, 2, 1)
        self.score4 = nn.Conv2d(8, 2, 1)
        self.score5 = nn.Conv2d(8, 2, 1)
        self.up5 = nn.ConvTranspose2d(2, 2, 4, stride=2, bias=False)
        self.up4 = nn.ConvTranspose2d(2, 2, 4, stride=2, bias=False)
        self.up3 = nn.ConvTranspose2d(2, 2, 8, stride=4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool3 = self.pool3(x)
        pool4 = self.pool4(pool3)
        up = self.up5(self.score5(self.pool5(pool4)))
        score = self.score4(pool4)
        up = self.up4(up[:, :, : score.size(2), : score.size(3)] + score)
        score = self.score3(pool3)
        up = self.up3(up[:, :, 1 : 1 + score.size(2), 1 : 1 + score.size(3)] + score)
        return up[:, :, 4 : 4 + x.size(2), 4 : 4 + x.size(3)].contiguous()


class SegNet(nn.Module):
    """Badrinarayanan, Kendall, Cipolla 2015: unpools with the indices of the pools."""

    def __init__(self) -> None:
        super().__init__()
        self.down = conv_norm(3, 4)
        self.up = conv_norm(4, 4)
        self.out = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(x)
        pooled, indices = functional.max_pool2d(x, 2, 2, return_indices=True)
        x = functional.max_unpool2d(pooled, indices, 2, 2, output_size=x.size())
        return self.out(self.up(x))


class UNet(nn.Module):
    """Ronneberger, Fischer, Brox 2015: without padding, so skips are cropped."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = double_conv(1, 4, 0)
        self.down2 = double_conv(4, 6, 0)
        self.bottom = double_conv(6, 8, 0)
        self.up2 = nn.ConvTranspose2d(8, 6, 2, 2)
        self.conv2 = double_conv(12, 6, 0)
        self.up1 = nn.ConvTranspose2d(6, 4, 2, 2)
        self.conv1 = double_conv(8, 4, 0)
        self.out = nn.Conv2d(4, 2, 1)

    @staticmethod
    def crop(skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = (skip.shape[2] - x.shape[2]) // 2
        columns = (skip.shape[3] - x.shape[3]) // 2
        skip = skip[:, :, rows : rows + x.shape[2], columns : columns + x.shape[3]]
        return torch.cat([skip, x], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        x = self.bottom(functional.max_pool2d(second, 2))
        x = self.conv2(self.crop(second, self.up2(x)))
        return self.out(self.conv1(self.crop(first, self.up1(x))))


class UNetPlusPlus(nn.Module):
    """Zhou, Siddiquee, Tajbakhsh, Liang 2018: nested skips, and a result of each depth."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 6, 8)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.convs = nn.ModuleDict()
        for depth, width in enumerate(widths):
            before = 1 if depth == 0 else widths[depth - 1]
            self.convs[f"{depth}_0"] = double_conv(before, width)
            for column in range(1, len(widths) - depth):
                inner = width * column + widths[depth + 1]
                self.convs[f"{depth}_{column}"] = double_conv(inner, width)
        self.outs = nn.ModuleList([nn.Conv2d(4, 1, 1) for _ in widths[1:]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid: dict[tuple[int, int], torch.Tensor] = {}
        for total in range(3):
            for column in range(total + 1):
                depth = total - column
                conv = self.convs[f"{depth}_{column}"]
                if column == 0:
                    below = x if depth == 0 else self.pool(grid[depth - 1, 0])
                else:
                    skips = [grid[depth, each] for each in range(column)]
                    below = torch.cat([*skips, self.up(grid[depth + 1, column - 1])], 1)
                grid[depth, column] = conv(below)
        results = [out(grid[0, column + 1]) for column, out in enumerate(self.outs)]
        return sum(results) / len(results)


class AttentionUNet(nn.Module):
    """Oktay et al. 2018: a gate on each skip, made at a coarser scale."""

    def __init__(self) -> None:
        super().__init__()
        self.down = double_conv(1, 4)
        self.bottom = double_conv(4, 6)
        self.theta = nn.Conv2d(4, 3, 2, stride=2, bias=False)
        self.phi = nn.Conv2d(6, 3, 1)
        self.psi = nn.Conv2d(3, 1, 1)
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)
        self.out = nn.Sequential(double_conv(8, 4), nn.Conv2d(4, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        below = self.bottom(functional.max_pool2d(skip, 2))
        theta = self.theta(skip)
        phi = functional.interpolate(self.phi(below), size=theta.size()[2:], mode="bilinear")
        gate = torch.sigmoid(self.psi(functional.relu(theta + phi, inplace=True)))
        gate = functional.interpolate(gate, size=skip.size()[2:], mode="bilinear")
        return self.out(torch.cat([gate.expand_as(skip) * skip, self.up(below)], 1))


class DeepLabV3(nn.Module):
    """Chen, Papandreou, Schroff, Adam 2017: a pyramid of dilated convolutions, and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(3, 4, stride=2), conv_norm(4, 6, stride=2))
        self.branches = nn.ModuleList(
            [conv_norm(6, 4, 1)]
            + [
                nn.Sequential(
                    nn.Conv2d(6, 4, 3, padding=rate, dilation=rate, bias=False),
                    nn.BatchNorm2d(4),
                    nn.ReLU(),
                )
                for rate in (2, 4, 6)
            ]
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 4, 1), nn.ReLU())
        self.project = conv_norm(20, 6, 1)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-2:]
        x = self.body(x)
        parts = [branch(x) for branch in self.branches]
        pooled = self.pool(x)
        parts.append(
            functional.interpolate(pooled, size=x.shape[-2:], mode="bilinear", align_corners=False)
        )
        x = self.out(self.project(torch.cat(parts, dim=1)))
        return functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


class PspNet(nn.Module):
    """Zhao, Shi, Qi, Wang, Jia 2016: means over ever finer bins, brought back to full size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(3, 4, stride=2), conv_norm(4, 6, stride=2))
        self.stages = nn.ModuleList(
            [
                nn.Sequential(nn.AdaptiveAvgPool2d(bins), nn.Conv2d(6, 2, 1, bias=False))
                for bins in (1, 2, 3, 6)
            ]
        )
        self.out = nn.Sequential(conv_norm(14, 6), nn.Dropout2d(0.0), nn.Conv2d(6, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, _, height, width = x.shape
        x = self.body(x)
        h, w = x.size(2), x.size(3)
        parts = [functional.interpolate(stage(x), (h, w), mode="bilinear") for stage in self.stages]
        x = self.out(torch.cat([x, *parts], 1))
        return functional.interpolate(x, size=(height, width), mode="bilinear", align_corners=True)


class HrNet(nn.Module):
    """Sun, Xiao, Liu, Wang 2019: two resolutions side by side, exchanged and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 4, stride=2)
        self.high = nn.ModuleList([conv_norm(4, 4), conv_norm(4, 4)])
        self.start_low = conv_norm(4, 8, stride=2)
        self.low = conv_norm(8, 8)
        self.to_low = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8))
        self.to_high = nn.Sequential(
            nn.Conv2d(8, 4, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.Upsample(scale_factor=2, mode="nearest"),
        )
        self.head = nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        branches = [self.high[0](x), self.start_low(x)]
        branches = [self.high[1](branches[0]), self.low(branches[1])]
        high = functional.relu(branches[0] + self.to_high(branches[1]))
        low = functional.relu(branches[1] + self.to_low(branches[0]))
        h, w = high.shape[-2:]
        low = functional.interpolate(low, size=(h, w), mode="bilinear", align_corners=False)
        return self.head(torch.cat([high, low], 1))


class FeaturePyramid(nn.Module):
    """Lin et al. 2016: a top-down way with lateral connections; returns a dictionary of maps."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 6, 8)
        self.stages = nn.ModuleList(
            [
                conv_norm(before, width, stride=2)
                for before, width in zip((3, 4, 6), widths, strict=True)
            ]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(width, 4, 1) for width in widths])
        self.smooth = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in widths])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        top = self.lateral[-1](maps[-1])
        results = {"2": self.smooth[-1](top)}
        for level in (1, 0):
            lateral = self.lateral[level](maps[level])
            top = lateral + functional.interpolate(top, size=lateral.shape[-2:], mode="nearest")
            results[str(level)] = self.smooth[level](top)
        results["pool"] = functional.max_pool2d(results["2"], 1, 2)
        return results
