"""`MLP`: a list of layers, trained by back-propagation."""

from __future__ import annotations

from kadril.experiment.models.model import Model

__all__ = ["MLP"]


class MLP(Model):
    """A list of layers, trained by back-propagation. See `Model` for the settings."""
