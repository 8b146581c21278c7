"""Stand-in for the part of torchvision that the examples use: made-up data, no downloads."""

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
