"""The two models, and what they are fed with."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

__all__ = ["Chain", "make_batches", "make_mlp"]

WIDTHS = (784, 2048, 2048, 2048, 10)  # 10 020 874 parameters
BATCH = 32
NUM_BATCHES = 16

NUM_PARAMETERS, PARAMETER_SIZE = 500, 1000


def make_mlp() -> nn.Module:
    """Few large parameters: what counts is how fast bytes move, and what they can hide behind."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, following in pairwise(WIDTHS):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images of noise, whose label is the brightest of their first pixels; others on each rank."""
    dice = torch.Generator().manual_seed(1 + rank)
    images = [torch.randn(BATCH, WIDTHS[0], generator=dice) for _ in range(NUM_BATCHES)]
    return [(image, image[:, : WIDTHS[-1]].argmax(1)) for image in images]


class Chain(nn.Module):
    """Many small parameters: what counts is what each of them costs.

    One multiplication and one addition of a thousand numbers per parameter leave nothing to hide
    behind.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gates = nn.ParameterList(
            nn.Parameter(0.01 * torch.randn(PARAMETER_SIZE)) for _ in range(NUM_PARAMETERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of `x * prod(1 + gate)`."""
        for gate in self.gates:
            x = x + x * gate
        return x.mean()
