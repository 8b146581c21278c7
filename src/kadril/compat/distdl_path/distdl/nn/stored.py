"""Parameters that live on some workers, and are nothing on the others."""

from __future__ import annotations

import torch

from ..utilities.torch import zero_volume_tensor

__all__ = ["store"]


def store(module: torch.nn.Module, name: str, value: torch.Tensor | None, is_here: bool) -> None:
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
        module.register_buffer(name, zero_volume_tensor(dtype=value.dtype))
