"""Clipping by the norm of all gradients, of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from kadril.transport.base import Transport

__all__ = ["clip_to_norm", "total_norm"]


def clip_to_norm(
    transport: Transport,
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
) -> torch.Tensor:
    """Scale gradients down to a norm of all, and return the norm before; collective.

    Raises:
        RuntimeError: the norm is not finite, and `error_if_nonfinite` is True; on all ranks.
    """
    norm = total_norm(transport, gradients, float(norm_type))
    result = torch.tensor(norm)
    if error_if_nonfinite and not bool(torch.isfinite(result)):
        raise RuntimeError(
            f"the norm of order {norm_type} of all gradients is {norm}; give"
            " error_if_nonfinite=False to continue anyway"
        )
    scale_down(gradients, norm, float(max_norm))
    return result


def total_norm(
    transport: Transport, gradients: Iterable[torch.Tensor], norm_type: float = 2.0
) -> float:
    """Return the norm of all gradients on all ranks, as if they were one vector; collective.

        p = inf:    max_r max_i |g_i|
        p = -inf:   min_r min_i |g_i|
        p = 0:      number of g_i that are not 0
        otherwise:  (sum_r sum_i |g_i|^p)^(1/p)

    Ranks exchange a few numbers. The norm is NaN if a gradient is NaN, infinite if it is too large
    for a float, and 0 if no rank has a gradient.

    Args:
        transport: transport over the ranks.
        gradients: gradients of this rank's pieces.
        norm_type: the p of the norm.
    """
    norms = [float(torch.linalg.vector_norm(each, norm_type)) for each in gradients if each.numel()]
    if math.isinf(norm_type):
        # A maximum ignores NaN, so the second number says whether there was one. The third says
        # whether any rank has a gradient. A minimum is the maximum of negated values.
        sign = math.copysign(1.0, norm_type)
        has_nan = any(map(math.isnan, norms))
        numbers = [] if has_nan else [sign * norm for norm in norms]
        largest = np.array([max(numbers, default=-math.inf), has_nan, bool(norms)])
        transport.allreduce(largest, "max", name="norm")
        if not largest[2]:
            return 0.0
        return math.nan if largest[1] else sign * float(largest[0])
    exponent = norm_type or 1.0  # for p = 0 each norm is a count of elements, and counts add up
    total = np.array([add_up([power(norm, exponent) for norm in norms]), len(norms)])
    transport.allreduce(total, name="norm")
    return power(float(total[0]), 1.0 / exponent) if total[1] else 0.0


def power(number: float, exponent: float) -> float:
    """Return a power of a number >= 0; infinity where Python raises, since other ranks wait."""
    try:
        return float(number**exponent)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def add_up(numbers: Sequence[float]) -> float:
    """Return the sum of numbers >= 0; infinity where it is too large for a float."""
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf


def scale_down(gradients: Iterable[torch.Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients down to a norm, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0 or math.isnan(factor):
        for gradient in gradients:
            gradient.mul_(factor)
