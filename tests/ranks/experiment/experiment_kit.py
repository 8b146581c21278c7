"""Small models, plain and distributed, made of the same description; and data without files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import kadril.experiment as ke
from kadril.experiment.layers.fully_connected import MIN_SPLIT_OUTPUTS
from kadril.experiment.models import Model
from kadril.experiment.towers import Towers

KINDS = ("conv", "max", "l2", "average", "lcn", "local", "full")
CLASSES = {
    "conv": "ConvLayer",
    "max": "MaxPoolingLayer",
    "l2": "L2PoolingLayer",
    "average": "AveragePoolingLayer",
    "lcn": "LCNLayer",
    "local": "LocalFilteringLayer",
    "full": "LayerWithNoBias",
    "wide": "LayerWithNoBias",  # so many outputs that ranks share its inputs
}


def make_layers(
    kinds: Sequence[str],
    dist: bool,
    backend: ke.Backend,
    shape: Sequence[int],
    stride: int = 1,
    num_outputs: int = 3,
) -> list[Any]:
    """Layers that follow each other, on images of channels x rows x columns, then some outputs."""
    suffix = "Dist" if dist else ""
    channels, rows, columns = shape
    inputs = channels * rows * columns
    layers: list[Any] = []
    for place, kind in enumerate([*kinds, "full"]):
        cls = getattr(ke, CLASSES[kind] + suffix)
        name = f"{kind}{place}"
        if kind in ("full", "wide"):
            nout = 7 if kind == "full" else MIN_SPLIT_OUTPUTS + 1
            nout = num_outputs if place == len(kinds) else nout
            layers.append(cls(name, backend, nin=inputs, nout=nout, activation=ke.Logistic()))
            inputs = nout
            continue
        settings: dict[str, Any] = {"nifm": channels, "ifmshape": [rows, columns]}
        settings |= {"fshape": [3, 3], "stride": 1 if kind == "lcn" else stride}
        if kind in ("conv", "local"):
            settings |= {"nofm": 3, "weight_init": {"type": "uniform", "low": -0.3, "high": 0.3}}
        layers.append(cls(name, **settings, backend=backend))
        channels, (rows, columns) = layers[-1].nofm, layers[-1].ofmshape
        inputs = channels * rows * columns
    return layers


def make_model(
    kinds: Sequence[str],
    dist: bool,
    shape: Sequence[int] = (2, 10, 9),
    model: str = "Convnet",
    stride: int = 1,
    num_outputs: int = 3,
    **settings: Any,
) -> Any:
    """A model in float64, whose numbers are drawn from the same seed each time.

    It learns slowly: where outputs are 0 or 1 to rounding, neon's derivative of the cross entropy
    is not that of its value.
    """
    backend = ke.Backend(3, "float64")
    layers = make_layers(kinds, dist, backend, shape, stride, num_outputs)
    cls = getattr(ke, model + ("Dist" if dist else ""))
    return cls(layers=layers, backend=backend, learning_rate=0.02, **settings)


def some_images(count: int, shape: Sequence[int], seed: int = 1) -> torch.Tensor:
    """Images as rows, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    size = shape[0] * shape[1] * shape[2]
    return torch.rand(count, size, dtype=torch.float64, generator=generator)


def part_of(images: torch.Tensor, shape: Sequence[int], towers: Towers) -> torch.Tensor:
    """This rank's part of images that are rows."""
    rows, columns = towers.part_of(shape[1:])
    maps = images.view(len(images), *shape)
    return maps[:, :, slice(*rows), slice(*columns)].flatten(1).contiguous()


def some_targets(count: int) -> torch.Tensor:
    """One of three classes for each image."""
    return torch.nn.functional.one_hot(torch.arange(count) * 7 % 3, 3).double()


def whole_weights(model: Model) -> list[torch.Tensor]:
    """The whole weights of all layers, on every rank; collective."""
    return [each["weights"] for each in model.state()["layers"] if "weights" in each]


def train(model: Any, shape: Sequence[int], steps: int = 2) -> list[torch.Tensor]:
    """Take steps on a few images; return the outputs of the last and the weights after it."""
    images, targets = some_images(6, shape), some_targets(6)
    if isinstance(model, ke.DistModel):
        model.adjust_for_dist(shape)
        assert model.towers is not None
        images = part_of(images, shape, model.towers)
    outputs = images
    for step in range(steps):
        outputs = model.take_step(images, targets, step, len(targets))
    return [outputs, *whole_weights(model)]


def near(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], bound: float) -> bool:
    """Whether tensors agree, relative to the largest element of each."""
    pairs = list(zip(got, expected, strict=True))
    return all(
        one.shape == other.shape
        and float((one - other).abs().max()) <= bound * max(1.0, float(other.abs().max()))
        for one, other in pairs
    )
