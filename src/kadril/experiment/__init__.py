"""Experiments as neon had them: models on towers of ranks, described by a YAML file.

    kadril experiment examples/mnist_distarray_cnn.yaml -np 4

Every image is cut into a grid of parts, one for each rank: a tower. Layers exchange the halos of
their parts, so the model is the one that a single process trains. Layers, models and datasets have
neon's names and keys; on top of `kadril.nn` and `kadril.ops` there is little to do.

| file, folder | has |
|---|---|
| `towers.py` | the grid of ranks, and groups of grids that share a batch |
| `global_array.py` | `GlobalArray`: the parts of an array, views with halos and their adjoint |
| `backend.py` | random numbers and dtypes |
| `schedules.py` | momentum and learning rate by epoch |
| `layers/` | layers and their `Dist` twins |
| `models/` | models and their `Dist` twins |
| `datasets/` | datasets, of which a rank may keep its part of every image |
| `transforms/` | activations and costs |
| `experiments/` | what a file describes as a whole |
| `files/` | YAML files, the registry of classes, checkpoints |
| `drawing/` | curves, filters, towers and halos as pictures |
| `recipes/` | skeletons of a new dataset, layer or model |
| `program.py`, `progress.py` | what a rank of `kadril experiment` runs; its progress bar |
| `errors.py` | errors of experiments |
"""

from __future__ import annotations

import kadril.needs_torch  # noqa: F401 - says what to install

try:
    import msgspec as _  # noqa: F401 - checks the keys of files; everything here needs it
except ImportError as error:
    message = "kadril.experiment needs msgspec: pip install 'kadril[experiment]'"
    raise ImportError(message) from error

from kadril.experiment.backend import Backend, WeightInit
from kadril.experiment.datasets import CIFAR10, MNIST, Dataset, Digits
from kadril.experiment.errors import (
    BadValueError,
    DataFileError,
    ExperimentError,
    ExperimentFileError,
    GridError,
    UnknownClassError,
    UnknownKeyError,
)
from kadril.experiment.experiments import FitExperiment, FitPredictErrorExperiment, Result
from kadril.experiment.files.registry import register
from kadril.experiment.files.yaml_file import load_file, load_text
from kadril.experiment.global_array import GlobalArray, LocalArray
from kadril.experiment.layers import (
    AveragePoolingLayer,
    AveragePoolingLayerDist,
    ConvLayer,
    ConvLayerDist,
    L2PoolingLayer,
    L2PoolingLayerDist,
    LayerWithNoBias,
    LayerWithNoBiasDist,
    LCNLayer,
    LCNLayerDist,
    LocalDeFilteringLayer,
    LocalFilteringLayer,
    LocalFilteringLayerDist,
    LocalLayer,
    LocalLayerDist,
    MaxPoolingLayer,
    MaxPoolingLayerDist,
)
from kadril.experiment.models import (
    GB,
    MLP,
    Convnet,
    ConvnetDist,
    DistModel,
    GBDist,
    MLPDist,
    Model,
    Record,
)
from kadril.experiment.schedules import LearningRate, Momentum
from kadril.experiment.towers import Towers, fitting_grids
from kadril.experiment.transforms import (
    CrossEntropy,
    Linear,
    Logistic,
    RectLin,
    Softmax,
    SumSquaredDiffs,
    Tanh,
)

__all__ = [
    "CIFAR10",
    "GB",
    "MLP",
    "MNIST",
    "AveragePoolingLayer",
    "AveragePoolingLayerDist",
    "Backend",
    "BadValueError",
    "ConvLayer",
    "ConvLayerDist",
    "Convnet",
    "ConvnetDist",
    "CrossEntropy",
    "DataFileError",
    "Dataset",
    "Digits",
    "DistModel",
    "ExperimentError",
    "ExperimentFileError",
    "FitExperiment",
    "FitPredictErrorExperiment",
    "GBDist",
    "GlobalArray",
    "GridError",
    "L2PoolingLayer",
    "L2PoolingLayerDist",
    "LCNLayer",
    "LCNLayerDist",
    "LayerWithNoBias",
    "LayerWithNoBiasDist",
    "LearningRate",
    "Linear",
    "LocalArray",
    "LocalDeFilteringLayer",
    "LocalFilteringLayer",
    "LocalFilteringLayerDist",
    "LocalLayer",
    "LocalLayerDist",
    "Logistic",
    "MLPDist",
    "MaxPoolingLayer",
    "MaxPoolingLayerDist",
    "Model",
    "Momentum",
    "Record",
    "RectLin",
    "Result",
    "Softmax",
    "SumSquaredDiffs",
    "Tanh",
    "Towers",
    "UnknownClassError",
    "UnknownKeyError",
    "WeightInit",
    "fitting_grids",
    "load_file",
    "load_text",
    "register",
]
