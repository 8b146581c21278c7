"""Transforms: what is applied element by element, with its derivative.

| file | has |
|---|---|
| `activations.py` | `RectLin`, `Logistic`, `Tanh`, `Linear`, `Softmax` |
| `costs.py` | `CrossEntropy`, `SumSquaredDiffs` |
"""

from __future__ import annotations

from kadril.experiment.transforms.activations import (
    Activation,
    Linear,
    Logistic,
    RectLin,
    Softmax,
    Tanh,
)
from kadril.experiment.transforms.costs import Cost, CrossEntropy, SumSquaredDiffs

__all__ = [
    "Activation",
    "Cost",
    "CrossEntropy",
    "Linear",
    "Logistic",
    "RectLin",
    "Softmax",
    "SumSquaredDiffs",
    "Tanh",
]
