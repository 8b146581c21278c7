"""`ConvnetDist`: `Convnet` on towers, one part of every image for each rank."""

from __future__ import annotations

from kadril.experiment.models.convnet import Convnet
from kadril.experiment.models.dist_model import DistModel

__all__ = ["ConvnetDist"]


class ConvnetDist(DistModel, Convnet):
    """`Convnet` on towers. See `Model` and `DistModel` for the settings."""
