"""The norm of gradients that no rank has all of."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from kadril.transport.base import Transport

__all__ = ["clip_gradients", "total_norm"]


def total_norm(
    transport: Transport, gradients: Iterable[torch.Tensor], norm_type: float = 2.0
) -> float:
    """The norm of all gradients on all ranks, as if they were one vector; collective.

        p = inf:    max_r max_i |g_i|
        p = 0:      number of g_i that are not 0
        otherwise:  (sum_r sum_i |g_i|^p)^(1/p)

    One number goes over the ranks. Where a gradient is not a number, neither is the norm.

    Args:
        transport: of the ranks.
        gradients: of this rank's pieces.
        norm_type: p.
    """
    norms = [float(torch.linalg.vector_norm(each, norm_type)) for each in gradients if each.numel()]
    if math.isinf(norm_type):
        # A maximum forgets what is not a number: the second number tells of it.
        has_nan = any(map(math.isnan, norms))
        largest = np.array([0.0 if has_nan else max(norms, default=0.0), has_nan])
        transport.allreduce(largest, "max", name="norm")
        return math.nan if largest[1] else float(largest[0])
    power = norm_type or 1.0  # of 0 each norm is a number of elements
    total = np.array([math.fsum(norm**power for norm in norms)])
    transport.allreduce(total, name="norm")
    return math.pow(float(total[0]), 1.0 / power)


def clip_gradients(gradients: Iterable[torch.Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients down to a norm, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0 or math.isnan(factor):
        for gradient in gradients:
            gradient.mul_(factor)
