"""Training or evaluation mode of modules, set for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode", "in_modes"]


@contextmanager
def in_mode(module: nn.Module, mode: bool) -> Iterator[None]:
    """Set a module and its children to training or evaluation, and restore each mode afterwards."""
    with restored(module):
        module.train(mode)
        yield


@contextmanager
def in_modes(model: nn.Module, modes: Mapping[str, bool]) -> Iterator[None]:
    """Set modules, by path, to training or evaluation, and restore each mode afterwards."""
    with restored(model):
        for path, module in model.named_modules():
            module.training = modes[path]
        yield


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module afterwards."""
    before = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training
