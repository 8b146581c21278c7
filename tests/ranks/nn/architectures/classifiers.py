"""Classifiers of images, 1998 to 2017."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = [
    "AlexNet",
    "DenseNet",
    "GoogLeNet",
    "LeNet5",
    "NetworkInNetwork",
    "PreActResNet",
    "ResNeXt",
    "ResNet",
    "Vgg",
    "Xception",
]


class LeNet5(nn.Module):
    """LeCun, Bottou, Bengio, Haffner 1998: convolutions and average pools for written digits."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, 5)
        self.c3 = nn.Conv2d(6, 16, 5)
        self.c5 = nn.Conv2d(16, 20, 5)
        self.f6 = nn.Linear(20, 12)
        self.output = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = functional.avg_pool2d(torch.tanh(self.c3(x)), 2)
        x = torch.tanh(self.c5(x)).view(x.size(0), -1)
        return self.output(torch.tanh(self.f6(x)))


class AlexNet(nn.Module):
    """Krizhevsky, Sutskever, Hinton 2012: large strides, overlapping pools, response norms."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5, k=2.0),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(8, 12, 5, padding=2, groups=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5, k=2.0),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(12, 12, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(108, 16), nn.ReLU(), nn.Linear(16, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class Vgg(nn.Module):
    """Simonyan, Zisserman 2014: configuration A, 3x3 convolutions and pools."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (4, 0, 6, 0, 8, 8, 0, 8, 8, 0):
            if width == 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(True)]
            channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(32, 12), nn.ReLU(True), nn.Linear(12, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(x.flatten(start_dim=1))


class NetworkInNetwork(nn.Module):
    """Lin, Chen, Yan 2013: 1x1 convolutions between, and a global average pool for a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *self.block(3, 8, 5, 2),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            *self.block(8, 8, 5, 2),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            *self.block(8, 10, 3, 1),
        )

    @staticmethod
    def block(channels: int, width: int, size: int, padding: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, width, size, padding=padding),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return functional.avg_pool2d(x, x.shape[2:]).squeeze(-1).squeeze(-1)


class Inception(nn.Module):
    """Four branches, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch1 = nn.Conv2d(channels, 4, 1)
        self.branch2 = nn.Sequential(nn.Conv2d(channels, 3, 1), nn.Conv2d(3, 4, 3, padding=1))
        self.branch3 = nn.Sequential(nn.Conv2d(channels, 2, 1), nn.Conv2d(2, 4, 5, padding=2))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]
        return functional.relu(torch.cat(branches, 1))


class GoogLeNet(nn.Module):
    """Szegedy et al. 2014, with the auxiliary classifier: two results while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 6, 7, 2, 3),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.LocalResponseNorm(5),
        )
        self.inception1 = Inception(6)
        self.inception2 = Inception(16)
        self.auxiliary = nn.Linear(16 * 4, 10)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inception1(self.stem(x))
        side = self.auxiliary(torch.flatten(functional.adaptive_avg_pool2d(x, 2), 1))
        x = self.inception2(functional.max_pool2d(x, 3, 2, ceil_mode=True))
        x = self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))
        return x + 0.3 * side


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self, channels: int, width: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 2 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != 2 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 2 * width, 1, stride, bias=False), nn.BatchNorm2d(2 * width)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += identity
        return self.relu(x)


class ResNet(nn.Module):
    """He, Zhang, Ren, Sun 2015: bottlenecks, and a stem with a large stride."""

    groups = 1

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(
            Bottleneck(4, 4, groups=self.groups), Bottleneck(8, 4, groups=self.groups)
        )
        self.layer2 = Bottleneck(8, 6, 2, groups=self.groups)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class ResNeXt(ResNet):
    """Xie et al. 2016: the same with groups."""

    groups = 2


class PreActBlock(nn.Module):
    """Norm and activation before each convolution; the shortcut is of what was activated."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        if stride != 1 or channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(functional.relu(self.bn2(out)))
        out += shortcut
        return out


class PreActResNet(nn.Module):
    """He, Zhang, Ren, Sun 2016: identity mappings in deep residual networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.blocks = nn.ModuleList(
            [PreActBlock(4, 4, 1), PreActBlock(4, 6, 2), PreActBlock(6, 8, 2)]
        )
        self.bn = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        x = functional.relu(self.bn(x)).mean(dim=[-2, -1])
        return self.linear(x)


class DenseLayer(nn.Module):
    """One layer of a dense block: gives its input and its own features."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        x = self.conv1(functional.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(functional.relu(self.norm2(x)))


class DenseNet(nn.Module):
    """Huang, Liu, van der Maaten, Weinberger 2016: every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.block1 = nn.ModuleList([DenseLayer(6 + 3 * index, 3) for index in range(3)])
        self.transition = nn.Sequential(
            nn.BatchNorm2d(15), nn.ReLU(), nn.Conv2d(15, 6, 1, bias=False), nn.AvgPool2d(2, 2)
        )
        self.block2 = nn.ModuleList([DenseLayer(6 + 3 * index, 3) for index in range(2)])
        self.norm = nn.BatchNorm2d(12)
        self.classifier = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.transition(self.dense(self.block1, self.stem(x)))
        x = functional.relu(self.norm(self.dense(self.block2, x)))
        return self.classifier(functional.adaptive_avg_pool2d(x, 1).flatten(1))

    @staticmethod
    def dense(block: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in block:
            features.append(layer(features))
        return torch.cat(features, 1)


class SeparableConv(nn.Sequential):
    """A convolution of each channel alone, and one across channels."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )


class Xception(nn.Module):
    """Chollet 2016: entry, middle and exit flow of separable convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        self.entry = nn.Sequential(
            SeparableConv(4, 6), nn.ReLU(), SeparableConv(6, 6), nn.MaxPool2d(3, 2, 1)
        )
        self.skip = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.middle = nn.Sequential(nn.ReLU(), SeparableConv(6, 6), nn.ReLU(), SeparableConv(6, 6))
        self.exit = SeparableConv(6, 10)
        self.fc = nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.entry(x) + self.skip(x)
        x = x + self.middle(x)
        x = functional.relu(self.exit(x))
        x = functional.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.squeeze(torch.squeeze(x, 3), 2))
