"""Interpolation as a function: `torch.nn.functional.interpolate` of a tensor that is split."""

from __future__ import annotations

import torch

from kadril.nn.interpolation.upsample import DistributedUpsample, Scale, UpSize
from kadril.ops.calling import uncompiled
from kadril.partition import Partition

__all__ = ["interpolate"]


@uncompiled
def interpolate(
    x: torch.Tensor,
    P_x: Partition,
    size: UpSize = None,
    scale_factor: Scale = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    *,
    what: str = "interpolate",
) -> torch.Tensor:
    """Interpolate once; collective over the partition.

    A `DistributedUpsample` keeps its plan from call to call; arguments, result and errors are the
    same.
    """
    layer = DistributedUpsample(
        P_x, size, scale_factor, mode, align_corners, recompute_scale_factor, what=what
    )
    y: torch.Tensor = layer(x)
    return y
