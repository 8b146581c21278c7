"""The two models of the examples, plain or distributed, on images without files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kadril.experiment import load_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = {
    "cnn": EXAMPLES / "mnist_distarray_cnn-20-50-500-10.yaml",
    "gb": EXAMPLES / "mnist_distarray_gb.yaml",
}
SHAPE = (1, 28, 28)
BATCH = 100


def make_model(kind: str, plain: bool) -> Any:
    """Return the model of an example; a distributed one with its part of the ranks."""
    model = load_file(FILES[kind], plain=plain).model
    if not plain:
        model.adjust_for_dist(SHAPE)
    return model


def make_batch(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of a batch of images, and targets."""
    images = torch.rand(BATCH, *SHAPE, generator=torch.Generator().manual_seed(1))
    targets = torch.nn.functional.one_hot(torch.arange(BATCH) % 10, 10).float()
    if model.towers is not None:
        rows, columns = model.towers.part_of(SHAPE[1:])
        images = images[:, :, slice(*rows), slice(*columns)]
    return images.flatten(1).contiguous(), targets
