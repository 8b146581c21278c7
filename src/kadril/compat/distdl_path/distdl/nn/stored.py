"""Parameters that live on some workers, and are nothing on the others."""

from __future__ import annotations

from typing import Any

import torch

from ..utilities.torch import zero_volume_tensor
from .module import Module

__all__ = ["Storing", "store"]


class Storing(Module):
    """A layer some of whose parameters are nothing on this worker.

    Where a parameter is nothing it still is a leaf of the graph, as DistDL has it: after a backward
    pass its `grad` is a tensor without elements, not None.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> Storing:
        """Convert to another dtype or device, and keep what is nothing a leaf of the graph."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.requires_grad:
                self._buffers[name] = buffer.detach().requires_grad_()
        return self


def store(module: Storing, name: str, value: torch.Tensor | None, is_here: bool) -> None:
    """Give a module a parameter where it lives, and a tensor without elements elsewhere.

    Args:
        module: whose.
        name: of the parameter.
        value: to begin with; the module has None on all workers where it is None.
        is_here: whether it lives on this worker.
    """
    if is_here or value is None:
        parameter = None if value is None else torch.nn.Parameter(value.detach().clone())
        module.register_parameter(name, parameter)
    else:
        module.register_buffer(name, zero_volume_tensor(dtype=value.dtype, requires_grad=True))
