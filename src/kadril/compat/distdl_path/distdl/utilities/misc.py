"""A context for calling the forward and backward of an autograd function by hand."""

from __future__ import annotations

import torch

__all__ = ["DummyContext"]


class DummyContext:
    """A context that stores attributes and tensors, as that of autograd does."""

    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        """Store tensors."""
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Do nothing: no graph is recorded."""

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Do nothing: no graph is recorded."""

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: no graph is recorded."""
