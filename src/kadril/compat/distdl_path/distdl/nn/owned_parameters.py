"""Parameters that one worker of a group owns, and that all of them use.

    owner            w = (0.3 ...)                y_r = w           w* = y*        on the owner
    other workers    w = zero-volume tensor

DistDL keeps a parameter on the first worker only. The layers of `kadril.nn` take replicated ones: a
copy on each worker, each with the whole gradient. A replicated tensor counts once (see
`kadril.ops.replicated`), so the adjoint of `replicate` picks the owner's copy of the gradient, and
moves nothing; `keep_on_owner` is that the other way round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kadril.ops.linear_operator import apply_operator
from kadril.partition import Group

from ..utilities.torch import zero_volume_tensor
from .module import Module

__all__ = ["OwnedParameters", "keep_on_owner", "replicate"]


class OwnedParameters(Module):
    """Base of the layers some of whose parameters are zero-volume tensors on this worker.

    Where a parameter is not owned it still is a leaf of the graph, as DistDL has it: after a
    backward pass its `grad` is a tensor without elements, not None.
    """

    def _register_owned(self, name: str, value: torch.Tensor | None, is_owner: bool) -> None:
        """Register a parameter on its owner, and a zero-volume tensor on other workers.

        Args:
            name: of the parameter.
            value: its first value; None, on all workers, for a parameter that is not there.
            is_owner: whether this worker owns it.
        """
        if is_owner or value is None:
            parameter = None if value is None else torch.nn.Parameter(value.detach().clone())
            self.register_parameter(name, parameter)
        else:
            self.register_buffer(name, zero_volume_tensor(dtype=value.dtype, requires_grad=True))

    def _apply(self, fn: Any, recurse: bool = True) -> OwnedParameters:
        """Convert to another dtype or device; zero-volume tensors stay leaves of the graph."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.requires_grad:
                self._buffers[name] = buffer.detach().requires_grad_()
        return self


def replicate(x: torch.Tensor, shape: torch.Size, group: Group, what: str) -> torch.Tensor:
    """Return a copy of the owner's tensor on each worker; collective over the group.

    All workers enter the graph, without asking whether the owner wants a gradient.

    Args:
        x: the tensor on the group's first worker; a zero-volume tensor of its dtype elsewhere.
        shape: of the tensor.
        group: the workers that use it.
        what: name of the parameter in errors.
    """
    if group.transport.size == 1:
        return x
    return apply_operator(Replicate(group, shape, what), x, requires_grad=True)


def keep_on_owner(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """Return a replicated tensor on the group's first worker, and a zero-volume one elsewhere.

    The gradient of the first worker is what all of them get in the backward pass.
    """
    if group.transport.size == 1:
        return x
    return apply_operator(KeepOnOwner(group, x.shape, what), x, requires_grad=True)


class Replicate(NamedTuple):
    """A copy of the owner's tensor for each worker; the adjoint is `KeepOnOwner`."""

    group: Group
    shape: torch.Size
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Return the owner's tensor on each worker: y = x_0."""
        return broadcast(x, self.shape, self.group, what)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """Return the owner's copy: x*_0 = y*."""
        return y if self.group.transport.rank == 0 else None


class KeepOnOwner(NamedTuple):
    """A replicated tensor on one worker only; the adjoint is `Replicate`."""

    group: Group
    shape: torch.Size
    what: str

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Return the owner's copy: y_0 = x."""
        return x.clone() if self.group.transport.rank == 0 else x.new_empty(0)

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """Return the owner's tensor on each worker: x* = y*_0."""
        return broadcast(y, self.shape, self.group, what)


def broadcast(x: torch.Tensor, shape: torch.Size, group: Group, what: str) -> torch.Tensor:
    """Copy the tensor of the group's first worker to new memory on each."""
    result = x.new_empty(shape)
    if group.transport.rank == 0:
        result.copy_(x)
    group.transport.broadcast(result, 0, name=what)
    return result
