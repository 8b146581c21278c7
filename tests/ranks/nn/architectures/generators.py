"""Networks that make images: super-resolution, translation, and coordinates as channels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CoordConv", "CycleGan", "Dcgan", "Edsr", "Espcn"]


class Espcn(nn.Module):
    """Shi et al. 2016: convolutions at low resolution, then pixels made of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 4, 3, padding=1)
        self.conv3 = nn.Conv2d(4, 9, 3, padding=1)
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(x))))
        return self.shuffle(self.conv3(x))


class Edsr(nn.Module):
    """Lim, Son, Kim, Nah, Lee 2017: residual blocks without norms, means taken off and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.25]).view(1, 3, 1, 1))
        self.head = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(4, 4, 3, padding=1),
                    nn.ReLU(True),
                    nn.Conv2d(4, 4, 3, padding=1),
                )
                for _ in range(2)
            ]
        )
        self.up = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.PixelShuffle(2))
        self.tail = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head = self.head(x - self.mean)
        x = head
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.tail(self.up(x + head)) + self.mean


class CycleGan(nn.Module):
    """Zhu, Park, Isola, Efros 2017: reflection pads, instance norms, transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.ReflectionPad2d(3),
            nn.Conv2d(3, 4, 7),
            nn.InstanceNorm2d(4),
            nn.ReLU(True),
            nn.Conv2d(4, 6, 3, 2, 1),
            nn.InstanceNorm2d(6),
            nn.ReLU(True),
            ResidualBlock(6),
            nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
            nn.InstanceNorm2d(4),
            nn.ReLU(True),
            nn.ReflectionPad2d(3),
            nn.Conv2d(4, 3, 7),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class ResidualBlock(nn.Module):
    """Two padded convolutions, and what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
            nn.ReLU(True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x)


class Dcgan(nn.Module):
    """Radford, Metz, Chintala 2015: the discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 4, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4, 6, 4, 2, 1, bias=False),
            nn.BatchNorm2d(6),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(6, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x).view(-1, 1).squeeze(1)


class CoordConv(nn.Module):
    """Liu et al. 2018: coordinates, and the distance from the centre, as further channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(5, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 2, 3, padding=1)

    @staticmethod
    def with_coordinates(x: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x.shape
        rows = torch.linspace(-1, 1, height, dtype=x.dtype, device=x.device)
        columns = torch.arange(width, dtype=x.dtype, device=x.device) / (width - 1) * 2 - 1
        rows = rows.view(1, 1, height, 1).expand(batch, 1, height, width)
        columns = columns.view(1, 1, 1, width).repeat(batch, 1, height, 1)
        radius = torch.sqrt(rows.pow(2) + columns.pow(2))
        return torch.cat([x, rows, columns, radius], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(self.with_coordinates(x)))
        return self.conv2(x)
