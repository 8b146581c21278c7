"""Gradients on their way into a bucket: `.grad`, scale, layout, memory to collect them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.ownership.shared_memory import scratch_bytes
from kadril.transport.base import Transport

__all__ = [
    "GRAD",
    "Scale",
    "Scratch",
    "check_layout",
    "clear_grads",
    "copy_gradients",
    "layout_of_grad",
    "raw_grad",
]

# The descriptor of torch; parameters may have one of the trainer's (reduction/grad_notice.py).
GRAD: Any = torch.Tensor.grad


class Scale(NamedTuple):
    """Factors before and after gradients are added up over the ranks."""

    before: float
    after: float


def raw_grad(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a parameter, as autograd has it."""
    found: torch.Tensor | None = GRAD.__get__(tensor)
    return found


def clear_grads(tensors: Iterable[torch.Tensor], set_to_none: bool = True) -> None:
    """Drop the gradients of parameters, as `zero_grad` of torch's optimizers does."""
    for tensor in tensors:
        gradient = raw_grad(tensor)
        if set_to_none or gradient is None:
            tensor.grad = None
        else:
            gradient.detach_().zero_()


def layout_of_grad(tensor: torch.Tensor) -> torch.layout | None:
    """Return the layout of the gradient of a parameter; None where there is none."""
    gradient = raw_grad(tensor)
    return None if gradient is None else gradient.layout


class Scratch:
    """Memory to collect the gradients of a bucket in; the same for all buckets.

    A reduction has been read by all ranks when it returns, so the next one may use it again.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._bytes: dict[torch.device, torch.Tensor] = {}

    def get(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory of that many elements; the next call returns the same memory."""
        num_bytes = num_elements * dtype.itemsize
        memory = self._bytes.get(device)
        if memory is None or memory.numel() < num_bytes:
            memory = scratch_bytes(self._transport, num_bytes, device)
            self._bytes[device] = memory
        return memory[:num_bytes].view(dtype)


def copy_gradients(views: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """Copy gradients to their places, and zeros where there is none."""
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    for view, gradient in zip(views, gradients, strict=True):
        if gradient is None:
            view.zero_()
        else:
            targets.append(view)
            sources.append(gradient)
    if targets:
        torch._foreach_copy_(targets, sources)


def check_layout(entry: Entry, layout: torch.layout) -> None:
    """Raise `UnsupportedError` for a sparse gradient."""
    if layout != torch.strided:
        raise UnsupportedError(
            f"parameter {entry.name!r} has a sparse gradient, which cannot be cut into parts. Use"
            " sparse=False in its embedding, or leave it out and train it with"
            " kadril.torch.DistributedOptimizer(torch.optim.SparseAdam(...))"
        )
