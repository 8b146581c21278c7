"""A context for calling the forward and backward of an autograd function by hand."""

from __future__ import annotations

import torch

__all__ = ["DummyContext"]


class DummyContext:
    """Keeps what is stored in it, as autograd's own does."""

    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Nothing: no graph is kept."""

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Nothing: no graph is kept."""

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: no graph is kept."""
