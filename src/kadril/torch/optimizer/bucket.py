"""A bucket: many small gradients in one flat tensor, which is one request.

    parameters      p7      p6   p5            p4
    flat          | ....... |.. |............. |.....  |      shared by the ranks of the host
                    view     view

Where the bytes go. Autograd hands a gradient over as a fresh tensor when `.grad` is None, and adds
to `.grad` otherwise. For small tensors the calls cost more than the bytes, so a bucket wants few
calls per parameter: gradients stay where autograd put them until the last one of the bucket came,
then one `_foreach_copy_` moves them all into the flat tensor and `.grad` becomes the view there.
After `zero_grad(set_to_none=False)` they are still views: autograd adds into the bucket, and
nothing is left to copy. The reduction itself is zero-copy, in place.

A large gradient goes another way (large_gradient.py), as there the bytes cost more than the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from kadril import world
from kadril.errors import NoRoomError
from kadril.torch.optimizer.parameter_slot import ParameterSlot
from kadril.torch.optimizer.reduction_unit import Status
from kadril.torch.optimizer.request import Request
from kadril.torch.optimizer.settings import Settings

__all__ = ["Bucket", "flat_tensor"]

logger = logging.getLogger("kadril")

# Views begin at multiples of this, so that vector loads are aligned.
ALIGNMENT = 64


class Bucket:
    """Gradients of one dtype and device; see `Unit`.

    Attributes:
        flat: all gradients, one after the other.
    """

    def __init__(self, name: str, slots: Sequence[ParameterSlot], settings: Settings) -> None:
        self.slots = list(slots)
        self.num_missing = len(self.slots)
        self.status = Status.COLLECTING
        self.request = Request(name, settings)
        self.settings = settings
        first = self.slots[0].parameter
        dtype = gradient_dtype(first)
        step = max(1, ALIGNMENT // dtype.itemsize)
        begins, end = [], 0
        for slot in self.slots:
            begins.append(end)
            end += -(-slot.parameter.numel() // step) * step
        self.flat = flat_tensor(end, dtype, first.device)
        for slot, begin in zip(self.slots, begins, strict=True):
            # Contiguous whatever the layout of the parameter: ranks may differ in their layouts,
            # and elements have to meet their own kind.
            view = self.flat[begin : begin + slot.parameter.numel()]
            slot.view = view.view(slot.parameter.shape)

    def launch(self) -> None:
        """Bring the gradients into the flat tensor, and submit it."""
        views: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        moved: list[ParameterSlot] = []
        for slot in self.slots:
            gradient, view = slot.parameter.grad, slot.view
            if gradient is view:
                continue
            if gradient is None or view is None or gradient.is_sparse:
                self.take_special(slot, gradient)
                continue
            moved.append(slot)
            views.append(view)
            gradients.append(gradient)
        if moved:
            torch._foreach_copy_(views, gradients)
            for slot in moved:
                slot.parameter.grad = slot.view
        self.request.submit(self.flat)
        self.status = Status.IN_FLIGHT

    def take_special(self, slot: ParameterSlot, gradient: torch.Tensor | None) -> None:
        """Put in what is not dense, and note it for the census."""
        assert slot.view is not None  # noqa: S101 - each slot of a bucket has one
        if gradient is None:
            slot.view.zero_()
            slot.reducer.note_absent(slot)
            return
        # Small enough to travel among its neighbours as it is, until all ranks know its kind.
        slot.view.copy_(gradient.to_dense())
        slot.parameter.grad = slot.view
        slot.reducer.note_sparse(slot, gradient.sparse_dim())

    def wait(self) -> None:
        """Wait for the reduction; the parameters' gradients are views of the result."""
        self.status = Status.DONE
        self.request.wait(self.flat)

    def give_up(self, slot: ParameterSlot) -> None:
        """Let a parameter travel by itself from here on; its place stays, as zeros."""
        self.slots.remove(slot)
        if slot.view is not None:
            slot.view.zero_()


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The dtype that autograd accumulates a parameter's gradient in."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def flat_tensor(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeroed memory for gradients: shared by the ranks of the host where it is CPU memory."""
    if device.type != "cpu":
        return torch.zeros(num_elements, dtype=dtype, device=device)
    try:
        return world.current().shared_empty(num_elements, dtype).zero_()
    except NoRoomError as error:
        logger.warning("gradients lie in private memory, which is slower to reduce: %s", error)
        return torch.zeros(num_elements, dtype=dtype)
