"""Models: each plain class has a twin, derived from it, in a file and with a name ending in dist.

| file | has |
|---|---|
| `model.py` | what all models do: stages of a training, predictions, state |
| `dist_model.py` | what makes a model a distributed one |
| `mlp.py`, `mlp_dist.py` | `MLP`, `MLPDist` |
| `convnet.py`, `convnet_dist.py` | `Convnet`, `ConvnetDist` |
| `gb.py`, `gb_dist.py` | `GB`, `GBDist`: pretraining without targets, then fine-tuning |
| `layer_sizes.py` | a check that layers and data go together, before the first step |
"""

from __future__ import annotations

from kadril.experiment.models.convnet import Convnet
from kadril.experiment.models.convnet_dist import ConvnetDist
from kadril.experiment.models.dist_model import DistModel
from kadril.experiment.models.gb import GB
from kadril.experiment.models.gb_dist import GBDist
from kadril.experiment.models.mlp import MLP
from kadril.experiment.models.mlp_dist import MLPDist
from kadril.experiment.models.model import Model, Record, Stage

__all__ = [
    "GB",
    "MLP",
    "Convnet",
    "ConvnetDist",
    "DistModel",
    "GBDist",
    "MLPDist",
    "Model",
    "Record",
    "Stage",
]
