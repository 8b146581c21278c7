"""The two models, and what they are fed with."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = ["MEMORY_MODELS", "MODELS", "Task", "make_stack", "make_tiny"]

WIDTHS = (784, 2048, 2048, 2048, 10)  # 10 020 874 parameters
NUM_WORDS, WIDTH, NUM_HEADS, NUM_LAYERS, LENGTH = 1000, 512, 8, 6, 32  # about 20 million
STACK_WIDTH, STACK_LAYERS = 1536, 12  # 108 MiB of gradients


class Task:
    """A model with its data, other data on each rank.

    Attributes:
        model: the same on all ranks at first.
    """

    def __init__(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.model = model
        self._inputs = inputs
        self._targets = targets

    def loss(self, model: nn.Module) -> torch.Tensor:
        """Of the model, maybe wrapped, on this rank's batch."""
        scores = model(self._inputs)
        return cross_entropy(scores.flatten(0, -2), self._targets.flatten())


def make_tiny() -> Task:
    """Some parameters."""
    return Task(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), torch.zeros(1, dtype=torch.long))


def make_mlp(rank: int) -> Task:
    """10 million parameters, batch 32."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, following in pairwise(WIDTHS):
        layers += [nn.Linear(width, following), nn.ReLU()]
    dice = torch.Generator().manual_seed(1 + rank)
    images = torch.randn(32, WIDTHS[0], generator=dice)
    return Task(nn.Sequential(*layers[:-1]), images, images[:, : WIDTHS[-1]].argmax(1))


class Transformer(nn.Module):
    """Guesses each word from all of them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, width)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, NUM_HEADS, 4 * width, dropout=0, batch_first=True)
                for _ in range(NUM_LAYERS)
            )
        )
        self.scores = nn.Linear(width, NUM_WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From words to scores of words."""
        y: torch.Tensor = self.scores(self.layers(self.words(x)))
        return y


def make_transformer(rank: int, width: int = WIDTH) -> Task:
    """20 million parameters in six layers, 2 sequences of 32 words."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1 + rank)
    words = torch.randint(0, NUM_WORDS, (2, LENGTH), generator=dice)
    return Task(Transformer(width), words, words.roll(1, 1))


def make_wide_transformer(rank: int) -> Task:
    """78 million parameters: the same with twice the width."""
    return make_transformer(rank, 2 * WIDTH)


def make_stack(rank: int) -> Task:
    """Twelve layers that are all alike, 108 MiB of gradients; hardly any activations."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1 + rank)
    layers = [nn.Linear(STACK_WIDTH, STACK_WIDTH) for _ in range(STACK_LAYERS)]
    numbers = torch.randn(16, STACK_WIDTH, generator=dice)
    return Task(nn.Sequential(*layers), numbers, numbers.argmax(1))


MODELS = {"mlp": make_mlp, "transformer": make_transformer}
MEMORY_MODELS = {"transformer": make_transformer, "wide transformer": make_wide_transformer}
