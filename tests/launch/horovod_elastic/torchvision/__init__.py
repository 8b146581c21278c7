"""As much of torchvision as Horovod's examples use, with made-up data: nothing is downloaded."""

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
