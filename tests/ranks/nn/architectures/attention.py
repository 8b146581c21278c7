"""Tokens from patches: transformers and mixers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MlpMixer", "SwinTransformer", "VisionTransformer"]


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        x = (weights.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        return self.proj(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2020: patches, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.token = nn.Parameter(torch.full((1, 1, 8), 0.1))
        self.positions = nn.Parameter(torch.linspace(-1, 1, 17 * 8).view(1, 17, 8))
        self.blocks = nn.Sequential(EncoderBlock(8, 2), EncoderBlock(8, 2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.norm(self.blocks(x + self.positions))
        return self.head(x[:, 0])


class WindowBlock(nn.Module):
    """Attention inside windows, which are shifted in every second block."""

    def __init__(self, width: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm = nn.LayerNorm(width)
        self.inner = EncoderBlock(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        y = self.norm(x)
        if self.shift > 0:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        size = self.window
        y = y.view(batch, height // size, size, width // size, size, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, channels)
        y = self.inner(y).view(batch, height // size, width // size, size, size, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, height, width, channels)
        if self.shift > 0:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        return x + y


class SwinTransformer(nn.Module):
    """Liu et al. 2021: windows, shifts, and patches that are merged (no masks at the border)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 4, 4)
        self.stage1 = nn.Sequential(WindowBlock(4, 2, 0), WindowBlock(4, 2, 1))
        self.merge = nn.Linear(16, 8, bias=False)
        self.stage2 = WindowBlock(8, 2, 0)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage1(self.patches(x).permute(0, 2, 3, 1))
        corners = [x[:, row::2, column::2, :] for column in (0, 1) for row in (0, 1)]
        x = self.stage2(self.merge(torch.cat(corners, -1)))
        return self.head(x.mean((1, 2)))


class MixerBlock(nn.Module):
    """A perceptron over tokens, and one over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens))
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class MlpMixer(nn.Module):
    """Tolstikhin et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.blocks = nn.Sequential(MixerBlock(16, 8), MixerBlock(16, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.norm(self.blocks(x)).mean(dim=1)
        return self.head(functional.relu(x))
