"""Torch's fused kernels: one call for the step of all parameters of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from kadril.sharded.optimizer.eager_class import OptimizerClass, torch_class
from kadril.sharded.optimizer.supported_optimizers import is_of_torch

__all__ = ["complete_momentum", "may_fuse"]

# Optimizers with a fused kernel for CPUs.
FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})


def may_fuse(
    optimizer: OptimizerClass,
    options: Sequence[Mapping[str, Any]],
    tensors: Iterable[torch.Tensor],
) -> bool:
    """Whether torch has a fused kernel for the step, and the options allow it.

    Args:
        optimizer: class of the optimizer.
        options: options of the optimizer, and of each parameter group.
        tensors: the parameters to step.
    """
    if optimizer.__name__ not in FUSED or not is_of_torch(optimizer):
        return False
    for each in options:
        asked = ("fused", "foreach", "differentiable", "capturable")
        if any(each.get(name) is not None for name in asked):
            return False
        # With dampening a buffer cannot begin as zeros; see `complete_momentum`.
        if isinstance(each.get("lr"), torch.Tensor) or each.get("dampening"):
            return False
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return all(tensor.dtype in kinds and tensor.device.type == "cpu" for tensor in tensors)


def complete_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give zero momentum to parameters in their first step, where others have momentum.

    Torch's fused kernel of SGD takes it from all parameters or from none, and fails where some are
    used later than others. With zeros the first step makes it the gradient, as without any.
    """
    if torch_class(type(optimizer)) is not torch.optim.SGD:
        return
    for group in optimizer.param_groups:
        if not group["fused"] or not group["momentum"] or group["dampening"]:
            continue
        stepped = [each for each in group["params"] if each.grad is not None]
        new = [each for each in stepped if optimizer.state[each].get("momentum_buffer") is None]
        if 0 < len(new) < len(stepped):
            for each in new:
                optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)
