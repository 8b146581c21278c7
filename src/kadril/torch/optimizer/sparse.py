"""A sparse gradient, such as that of `Embedding(sparse=True)`: rows of all ranks, side by side.

Rows travel, not the whole table. A rank without a gradient takes part with no rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kadril.torch.ops import sparse_allreduce_async
from kadril.torch.optimizer.bucket import gradient_dtype
from kadril.torch.optimizer.parameter_slot import ParameterSlot
from kadril.torch.optimizer.reduction_unit import Status
from kadril.torch.optimizer.settings import Settings

__all__ = ["SparseUnit"]


class SparseUnit:
    """One sparse gradient; see `Unit`. Made when a census found one; the same on all ranks."""

    def __init__(self, name: str, slot: ParameterSlot, sparse_dim: int, settings: Settings) -> None:
        self.slots = [slot]
        self.num_missing = 1
        self.status = Status.COLLECTING
        self.name = name
        self.sparse_dim = sparse_dim
        self.settings = settings
        self._finish: Callable[[], torch.Tensor] | None = None

    def launch(self) -> None:
        """Submit the rows there are."""
        (slot,) = self.slots
        gradient = slot.parameter.grad
        if gradient is None:
            slot.reducer.note_absent(slot)
        self._finish = sparse_allreduce_async(
            self.as_sparse(slot.parameter, gradient),
            name=self.name,
            op=self.settings.op,
            process_set=self.settings.process_set,
        )
        self.status = Status.IN_FLIGHT

    def as_sparse(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        """A gradient in the form that all ranks agreed on."""
        if gradient is None:
            dense_shape = parameter.shape[self.sparse_dim :]
            return torch.sparse_coo_tensor(
                torch.empty((self.sparse_dim, 0), dtype=torch.int64, device=parameter.device),
                torch.empty(
                    (0, *dense_shape), dtype=gradient_dtype(parameter), device=parameter.device
                ),
                parameter.shape,
                check_invariants=False,
            ).coalesce()
        if gradient.is_sparse:
            # A row that was looked up twice is there twice; added up it travels once.
            return gradient.detach().coalesce()
        return gradient.detach().to_sparse(self.sparse_dim)

    def wait(self) -> None:
        """Wait for the rows of all ranks, and make them the gradient.

        Where no rank had a gradient there is none afterwards, as in a single process.
        """
        self.status = Status.DONE
        finish, self._finish = self._finish, None
        if finish is None:
            return
        (slot,) = self.slots
        result = finish()
        if slot.parameter.grad is not None or result._nnz():
            slot.parameter.grad = result
