"""The mode of a module, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode"]


@contextmanager
def in_mode(module: nn.Module, mode: bool) -> Iterator[None]:
    """Set a module and those in it to training or evaluation, and put each back afterwards."""
    before = {each: each.training for each in module.modules()}
    try:
        module.train(mode)
        yield
    finally:
        for each, was_training in before.items():
            each.training = was_training
