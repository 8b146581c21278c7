"""`MLPDist`: `MLP` on towers, one part of every image for each rank."""

from __future__ import annotations

from kadril.experiment.models.dist_model import DistModel
from kadril.experiment.models.mlp import MLP

__all__ = ["MLPDist"]


class MLPDist(DistModel, MLP):
    """`MLP` on towers. See `Model` and `DistModel` for the settings."""
