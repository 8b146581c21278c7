"""A small network in place of a large one."""

from __future__ import annotations

import torch

__all__ = ["resnet50"]


def resnet50() -> torch.nn.Module:
    """Return a network that takes pictures, and has a thousand classes."""
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000)
    )
