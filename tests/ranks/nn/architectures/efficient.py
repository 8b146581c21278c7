"""Classifiers with gates, shuffles and separable convolutions, 2016 to 2022."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = [
    "Cbam",
    "ConvNeXt",
    "EfficientNet",
    "MobileNetV2",
    "MobileNetV3",
    "SeResNet",
    "ShuffleNetV2",
    "SqueezeNet",
]


class Fire(nn.Module):
    """Squeeze, then expand by two kernels."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.squeeze(x), inplace=True)
        return torch.cat([self.expand1(x).relu(), self.expand3(x).relu()], 1)


class SqueezeNet(nn.Module):
    """Iandola et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(6, 2, 4),
            Fire(8, 2, 4),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(8, 3, 6),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.0), nn.Conv2d(12, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; a shortcut where the shape stays."""

    def __init__(self, channels: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels * expand
        self.has_shortcut = stride == 1 and channels == width
        self.conv = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(inplace=True)
        )
        self.blocks = nn.Sequential(
            InvertedResidual(4, 4, 1, 1),
            InvertedResidual(4, 6, 2, 2),
            InvertedResidual(6, 6, 1, 2),
            InvertedResidual(6, 8, 2, 2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.blocks(self.stem(x)).mean([2, 3]))


class SqueezeExcite(nn.Module):
    """A gate for each channel, from its mean over space; views and expansions as first written."""

    def __init__(self, channels: int, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, 2, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(2, channels, bias=False),
            gate(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, _, _ = x.size()
        y = self.pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SeResNet(nn.Module):
    """Hu, Shen, Albanie, Sun, Wu 2017: squeeze-and-excitation in residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.se = SqueezeExcite(6)
        self.fc = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn(self.stem(x)))
        residual = self.se(self.bn2(self.conv2(functional.relu(self.conv1(x)))))
        x = functional.relu(residual + x)
        return self.fc(functional.avg_pool2d(x, (x.shape[2], x.shape[3])).view(x.shape[0], -1))


class MobileBlock(nn.Module):
    """A block of MobileNetV3 and EfficientNet: expansion, depthwise, gate, projection."""

    def __init__(
        self, channels: int, width: int, kernel: int, stride: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        hidden = 2 * channels
        self.expand = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, kernel, stride, (kernel - 1) // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            activation(),
        )
        self.reduce = nn.Conv2d(hidden, 2, 1)
        self.excite = nn.Conv2d(2, hidden, 1)
        self.project = nn.Sequential(nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width))

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(self.expand(inputs))
        squeezed = functional.adaptive_avg_pool2d(x, 1)
        squeezed = self.excite(functional.relu(self.reduce(squeezed)))
        x = self.project(self.gate(squeezed) * x)
        if x.shape == inputs.shape:
            x = x + inputs
        return x


class HardMobileBlock(MobileBlock):
    """The same with a gate of straight lines."""

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        return functional.hardsigmoid(x)


class MobileNetV3(nn.Module):
    """Howard et al. 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish()
        )
        self.blocks = nn.Sequential(
            HardMobileBlock(4, 4, 3, 1, nn.ReLU),
            HardMobileBlock(4, 6, 5, 2, nn.Hardswish),
            HardMobileBlock(6, 6, 5, 1, nn.Hardswish),
        )
        self.head = nn.Sequential(nn.Linear(6, 12), nn.Hardswish(), nn.Linear(12, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        return self.head(x.squeeze(3).squeeze(2))


class EfficientNet(nn.Module):
    """Tan, Le 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.SiLU(inplace=True)
        )
        self.blocks = nn.ModuleList(
            [
                MobileBlock(4, 4, 3, 1, nn.SiLU),
                MobileBlock(4, 6, 3, 2, nn.SiLU),
                MobileBlock(6, 6, 5, 1, nn.SiLU),
            ]
        )
        self.fc = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((-1, -2)))


class ShuffleUnit(nn.Module):
    """Half of the channels pass by, half are convolved, then they are shuffled."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = channels // 2 if stride == 1 else channels
        self.main = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.ReLU(inplace=True),
        )
        self.side = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
        )
        if stride == 1:
            self.side = nn.Sequential()

    @staticmethod
    def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, groups, channels // groups, height, width)
        x = torch.transpose(x, 1, 2).contiguous()
        return x.view(batch, channels, height, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride == 1:
            first, second = x.chunk(2, dim=1)
            out = torch.cat((first, self.main(second)), dim=1)
        else:
            out = torch.cat((self.side(x), self.main(x)), dim=1)
        return self.shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """Ma, Zhang, Zheng, Sun 2018."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stage = nn.Sequential(ShuffleUnit(4, 2), ShuffleUnit(8, 1), ShuffleUnit(8, 1))
        self.fc = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stage(self.pool(self.stem(x))).mean([2, 3]))


class Cbam(nn.Module):
    """Woo, Park, Lee, Kweon 2018: gates by channel, and by place from mean and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.shared = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 6))
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.fc = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        size = (x.size(2), x.size(3))
        average = functional.avg_pool2d(x, size, stride=size)
        largest = functional.max_pool2d(x, size, stride=size)
        gate = self.shared(average.view(x.size(0), -1)) + self.shared(largest.view(x.size(0), -1))
        x = x * torch.sigmoid(gate).unsqueeze(2).unsqueeze(3).expand_as(x)
        squeezed = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), 1)
        x = x * torch.sigmoid(self.place(squeezed))
        return self.fc(x.mean((2, 3)))


class ChannelNorm(nn.Module):
    """A layer norm over channels that come second."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    """A large depthwise kernel, then linear layers with channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(0.5 * torch.ones(channels))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(inputs).permute(0, 2, 3, 1)
        x = functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-6)
        x = self.gamma * self.project(functional.gelu(self.expand(x)))
        return inputs + x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Liu, Mao, Wu, Feichtenhofer, Darrell, Xie 2022."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 4, 4), ChannelNorm(6))
        self.stage1 = ConvNeXtBlock(6)
        self.down = nn.Sequential(ChannelNorm(6), nn.Conv2d(6, 8, 2, 2))
        self.stage2 = ConvNeXtBlock(8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))
