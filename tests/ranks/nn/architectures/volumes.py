"""Networks for volumes and videos."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["C3d", "R2Plus1d", "UNet3d", "VNet"]


class C3d(nn.Module):
    """Tran, Bourdev, Fergus, Torresani, Paluri 2014: 3x3x3 all along, padded pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(3, 4, 3, padding=1)
        self.pool1 = nn.MaxPool3d((1, 2, 2), (1, 2, 2))
        self.conv2 = nn.Conv3d(4, 6, 3, padding=1)
        self.pool2 = nn.MaxPool3d(2, 2)
        self.conv3 = nn.Conv3d(6, 8, 3, padding=1)
        self.pool3 = nn.MaxPool3d(2, 2, padding=(0, 1, 1))
        self.fc = nn.Linear(8 * 2 * 5 * 5, 12)
        self.out = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool1(functional.relu(self.conv1(x)))
        x = self.pool2(functional.relu(self.conv2(x)))
        x = self.pool3(functional.relu(self.conv3(x)))
        return self.out(functional.relu(self.fc(x.view(-1, self.fc.in_features))))


class UNet3d(nn.Module):
    """Cicek, Abdulkadir, Lienkamp, Brox, Ronneberger 2016: batch norms, widths doubled early."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = self.pair(1, 2, 4)
        self.down2 = self.pair(4, 4, 6)
        self.bottom = self.pair(6, 6, 8)
        self.up2 = nn.ConvTranspose3d(8, 8, 2, 2)
        self.conv2 = self.pair(14, 6, 6)
        self.up1 = nn.ConvTranspose3d(6, 6, 2, 2)
        self.conv1 = self.pair(10, 4, 4)
        self.out = nn.Conv3d(4, 2, 1)

    @staticmethod
    def pair(channels: int, middle: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(channels, middle, 3, padding=1),
            nn.BatchNorm3d(middle),
            nn.ReLU(),
            nn.Conv3d(middle, width, 3, padding=1),
            nn.BatchNorm3d(width),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(functional.max_pool3d(first, 2))
        x = self.up2(self.bottom(functional.max_pool3d(second, 2)))
        difference = [have - want for have, want in zip(second.shape[2:], x.shape[2:], strict=True)]
        x = functional.pad(x, (0, difference[2], 0, difference[1], 0, difference[0]))
        x = self.up1(self.conv2(torch.cat([second, x], 1)))
        return self.out(self.conv1(torch.cat([first, x], 1)))


class VNet(nn.Module):
    """Milletari, Navab, Ahmadi 2016: residual stages, strided convolutions, PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(1, 4, 5, padding=2)
        self.relu1 = nn.PReLU(4)
        self.down = nn.Conv3d(4, 8, 2, stride=2)
        self.relu2 = nn.PReLU(8)
        self.conv2 = nn.Conv3d(8, 8, 5, padding=2)
        self.up = nn.ConvTranspose3d(8, 4, 2, stride=2)
        self.conv3 = nn.Conv3d(8, 8, 5, padding=2)
        self.relu3 = nn.PReLU(8)
        self.out = nn.Conv3d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.relu1(self.conv1(x) + x.repeat(1, 4, 1, 1, 1))
        below = self.relu2(self.down(first))
        below = self.relu2(self.conv2(below) + below)
        both = torch.cat((first, self.up(below)), 1)
        scores = self.out(self.relu3(self.conv3(both) + both))
        return functional.softmax(scores, dim=1)


class FactoredConv(nn.Sequential):
    """A convolution over space, then one over time."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv3d(channels, width, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(inplace=True),
            nn.Conv3d(width, width, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
        )


class R2Plus1d(nn.Module):
    """Tran, Wang, Torresani, Ray, LeCun, Paluri 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 4, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False),
            nn.BatchNorm3d(4),
            nn.ReLU(inplace=True),
        )
        self.conv1 = FactoredConv(4, 6, 2)
        self.bn1 = nn.BatchNorm3d(6)
        self.conv2 = FactoredConv(6, 6)
        self.bn2 = nn.BatchNorm3d(6)
        self.skip = nn.Conv3d(4, 6, 1, 2, bias=False)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        x = functional.relu(y + self.skip(x))
        return self.fc(self.pool(x).flatten(1))
