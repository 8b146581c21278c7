"""`GBDist`: `GB` on towers, one part of every image for each rank."""

from __future__ import annotations

from kadril.experiment.models.dist_model import DistModel
from kadril.experiment.models.gb import GB

__all__ = ["GBDist"]


class GBDist(DistModel, GB):
    """`GB` on towers. See `GB` and `DistModel` for the settings."""
