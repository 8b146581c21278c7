"""A large gradient travels by itself, from where autograd put it.

Measured for 40 MB of gradients on two ranks (ms beyond the same step without communication):

    copied into a shared bucket, reduced there without a copy     14
    left in a bucket (zero_grad writes, autograd reads and adds)  17
    reduced where it is, through the cache-sized staging area      7

The reduction of private memory costs about as much as a copy of it, so a copy only to save that is
a loss. Of the 7 ms, 4.4 are the reduction, 1.4 the wait for the slower rank; writing each gradient
once more, which nothing can do without, takes 2.3. Below some size the fixed cost of a request is
more than the copy: bucket.py.
"""

from __future__ import annotations

import torch

from kadril.torch.optimizer.bucket import gradient_dtype
from kadril.torch.optimizer.parameter_slot import ParameterSlot
from kadril.torch.optimizer.reduction_unit import Status
from kadril.torch.optimizer.request import Request
from kadril.torch.optimizer.settings import Settings

__all__ = ["LargeGradient"]


class LargeGradient:
    """One large gradient; see `Unit`.

    A rank that has no gradient, or a sparse one, before the ranks have agreed on its kind (see
    census.py) holds it back until the census: it does not know in which form to take part.

    Attributes:
        is_agreed: whether all ranks know that it is dense.
    """

    def __init__(self, name: str, slot: ParameterSlot, settings: Settings) -> None:
        self.slots = [slot]
        self.num_missing = 1
        self.status = Status.COLLECTING
        self.is_agreed = False
        self.name = name
        self.settings = settings
        self._request = Request(name, settings)
        self._gradient: torch.Tensor | None = None  # what is in flight: the result replaces it
        self._sent: torch.Tensor | None = None  # the same elements, contiguous

    def launch(self) -> None:
        """Submit the gradient, or zeros; or hold it back."""
        (slot,) = self.slots
        gradient = slot.parameter.grad
        if gradient is None:
            slot.reducer.note_absent(slot)
        elif gradient.is_sparse:
            slot.reducer.note_sparse(slot, gradient.sparse_dim())
        self.status = Status.HELD
        if self.is_agreed or (gradient is not None and not gradient.is_sparse):
            self.submit()

    def submit(self) -> None:
        """Start the reduction of whatever gradient there is, as a dense tensor."""
        (slot,) = self.slots
        gradient = slot.parameter.grad
        if gradient is None:
            parameter = slot.parameter
            gradient = torch.zeros(
                parameter.shape, dtype=gradient_dtype(parameter), device=parameter.device
            )
        elif gradient.is_sparse:
            gradient = gradient.to_dense()
            slot.parameter.grad = gradient
        self._gradient = gradient
        self._sent, name = contiguous(gradient.detach(), self.name)
        if name != self._request.name:
            self._request = Request(name, self.settings)
        self._request.submit(self._sent)
        self.status = Status.IN_FLIGHT

    def wait(self) -> None:
        """Wait for the reduction, which is in place."""
        self.status = Status.DONE
        if self._sent is not None:
            self._request.wait(self._sent)
            self._sent = None

    def give(self) -> None:
        """Make the result the gradient of a parameter that had none."""
        (slot,) = self.slots
        slot.parameter.grad = self._gradient

    def forget(self) -> None:
        """Hold the gradient no longer: the memory is the user's to free."""
        self._gradient = self._sent = None


def contiguous(gradient: torch.Tensor, name: str) -> tuple[torch.Tensor, str]:
    """A contiguous view of a dense gradient of any layout, and the name it is reduced under.

    A channels_last gradient is contiguous with its dims in another order. That order is in the
    name: a rank with another layout is not added up with this one, but waited for and reported.
    """
    if gradient.is_contiguous():
        return gradient, name
    dims = sorted(range(gradient.dim()), key=gradient.stride().__getitem__, reverse=True)
    view = gradient.permute(dims)
    if view.is_contiguous():
        return view, f"{name}.dims{''.join(str(dim) for dim in dims)}"
    return gradient, name  # the operation copies it in and out
