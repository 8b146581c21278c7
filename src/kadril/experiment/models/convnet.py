"""`Convnet`: a convolutional network: layers on images, then fully connected ones."""

from __future__ import annotations

from kadril.experiment.models.mlp import MLP

__all__ = ["Convnet"]


class Convnet(MLP):
    """A convolutional network: layers on images, then fully connected ones.

    See `Model` for the settings.
    """
