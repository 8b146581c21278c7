"""The models, and what they are fed with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = ["MODELS", "SHAPES", "Shape", "Task", "make_stack", "make_tiny"]

WIDTHS = (784, 2048, 2048, 2048, 10)  # 10 020 874 parameters
NUM_HEADS = 8
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
        """Return the loss of the model, maybe wrapped, on this rank's batch."""
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


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a transformer and of its batch.

    Attributes:
        num_layers: of attention and two linear maps; the width between these is four times `width`.
        width: of the numbers that stand for a word.
        num_words: in the vocabulary.
        batch: sequences that a rank sees in a step.
        length: words of each.
    """

    num_layers: int = 6
    width: int = 512
    num_words: int = 1000
    batch: int = 2
    length: int = 32


SHAPES = {
    "transformer": Shape(),  # 20 million parameters
    "wide transformer": Shape(width=1024),  # 78 million
    # The more words a batch has, the more there is to compute for each gradient that goes.
    "6 layers of 512, 16 words": Shape(batch=1, length=16),
    "6 layers of 512, 128 words": Shape(num_words=2000, length=64),  # 21 million
    "6 layers of 512, 512 words": Shape(batch=8, length=64),
    "2 layers of 1024, 64 words": Shape(num_layers=2, width=1024),  # 27 million
    # The narrower, the more gradients there are for as many numbers.
    "12 layers of 256, 128 words": Shape(num_layers=12, width=256, num_words=2000, length=64),
}


class Transformer(nn.Module):
    """Guesses each word from all of them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.words = nn.Embedding(shape.num_words, width)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, NUM_HEADS, 4 * width, dropout=0, batch_first=True)
                for _ in range(shape.num_layers)
            )
        )
        self.scores = nn.Linear(width, shape.num_words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map words to scores of words."""
        y: torch.Tensor = self.scores(self.layers(self.words(x)))
        return y


def make_transformer(shape: Shape, rank: int) -> Task:
    """A transformer of some shape, with words of this rank."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1 + rank)
    words = torch.randint(0, shape.num_words, (shape.batch, shape.length), generator=dice)
    return Task(Transformer(shape), words, words.roll(1, 1))


def make_stack(rank: int) -> Task:
    """Twelve layers that are all alike, 108 MiB of gradients; hardly any activations."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1 + rank)
    layers = [nn.Linear(STACK_WIDTH, STACK_WIDTH) for _ in range(STACK_LAYERS)]
    numbers = torch.randn(16, STACK_WIDTH, generator=dice)
    return Task(nn.Sequential(*layers), numbers, numbers.argmax(1))


MODELS: dict[str, Callable[[int], Task]] = {
    "mlp": make_mlp,
    **{name: functools.partial(make_transformer, shape) for name, shape in SHAPES.items()},
}
