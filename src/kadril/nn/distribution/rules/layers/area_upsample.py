"""The rule for interpolation by areas, which is an adaptive average pool."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from kadril.nn.distribution.layout import Layout, Subgrids
from kadril.nn.distribution.rules.call import BlockFunction, Call, Decision, Rule
from kadril.nn.pool.adaptive_avg import (
    DistributedAdaptiveAvgPool1d,
    DistributedAdaptiveAvgPool2d,
    DistributedAdaptiveAvgPool3d,
)
from kadril.ops.structure import agree

__all__ = ["or_area"]

POOLS: dict[int, Any] = {
    3: DistributedAdaptiveAvgPool1d,
    4: DistributedAdaptiveAvgPool2d,
    5: DistributedAdaptiveAvgPool3d,
}


def or_area(general: Rule) -> Rule:
    """Return the rule for `nn.Upsample`, from the one for all modes but "area"."""

    def rule(call: Call) -> Decision:
        module: Any = call.module
        operand = call.operand
        if module.mode != "area" or len(call.shape(operand)) not in POOLS:
            return general(call)
        layout = call.fitting(call.layout(operand), call.result.shape)
        make = partial(make_area, module, layout, call.name)
        return Decision({operand: layout}, layout, make, args=(operand,), kwargs={})

    return rule


def make_area(module: nn.Upsample, layout: Layout, what: str, subgrids: Subgrids) -> BlockFunction:
    """Make an adaptive pool for each size that an input has."""
    P_x = subgrids.partition(layout)
    pools: dict[tuple[int, ...], nn.Module] = {}

    def run(x: torch.Tensor) -> torch.Tensor:
        if not P_x.active:
            return x.clone()
        sizes = [have[-1].stop for have in agree(P_x, x, what).blocks(what)[2:]]
        wanted = output_sizes(module, sizes)
        if wanted not in pools:
            pools[wanted] = POOLS[x.dim()](P_x, wanted, what=what)
        y: torch.Tensor = pools[wanted](x)
        return y

    return run


def output_sizes(module: Any, sizes: list[int]) -> tuple[int, ...]:
    """Return the sizes of the result, from those of the input."""
    given = module.scale_factor if module.size is None else module.size
    each = [given] * len(sizes) if isinstance(given, (int, float)) else list(given)
    if module.size is not None:
        return tuple(int(size) for size in each)
    return tuple(math.floor(size * scale) for size, scale in zip(sizes, each, strict=True))
