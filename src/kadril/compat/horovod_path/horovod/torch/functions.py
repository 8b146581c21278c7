"""Broadcasts of parameters, optimizer states and objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kadril.torch import broadcast_optimizer_state as broadcast_state

from .._forward import forward

if TYPE_CHECKING:
    import torch

__getattr__ = forward("kadril.torch")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Broadcast the root's optimizer state, and give new parameters a gradient of zeros.

    See `kadril.torch.broadcast_optimizer_state`, which leaves gradients alone. Horovod makes
    missing state by a step with gradients of zeros, and programs rely on these: every parameter
    that wants a gradient and had no state has one afterwards. No step is taken here either.
    """
    fresh = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter not in optimizer.state
    ]
    broadcast_state(optimizer, root_rank, model)
    for parameter in fresh:
        parameter.grad = parameter.detach().new_zeros(parameter.shape)
