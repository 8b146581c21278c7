"""Adaptive average pooling of a tensor whose dims are split.

    y_o = 1/n_o sum of x_i  for i in bin o           x*_i = sum of y*_o / n_o  for bins o with i

Where workers share an output (`pool/adaptive_layer.py`), each adds up its part of the bin, and the
parts are added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kadril import ops
from kadril.nn.pool.adaptive_bins import LocalBins
from kadril.nn.pool.adaptive_layer import AdaptivePoolLayer, OutputSize
from kadril.ops.box_plan import WorkerBoxes
from kadril.partition import Partition

__all__ = [
    "AdaptiveAvgPool",
    "DistributedAdaptiveAvgPool1d",
    "DistributedAdaptiveAvgPool2d",
    "DistributedAdaptiveAvgPool3d",
]


class Averages(NamedTuple):
    """Bins that one worker averages, and the numbers of inputs to divide by.

    Attributes:
        bins: for each spatial dim.
        divisors: for each spatial dim, the inputs in each bin of the global tensor; one number for
            all dims where there is one output.
    """

    bins: list[LocalBins]
    divisors: list[list[int]]


class AdaptiveAvgPool(AdaptivePoolLayer):
    """Base of `DistributedAdaptiveAvgPool1d`, `2d` and `3d`: torch's layers, on a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x spatial, of any size; without N where `P_x` has no axis for it |
    | y | the balanced block of N x C x output size; whole along dims of output size 1 |

    Where an axis splits a dim whose output size is 1, the result is replicated along that axis,
    with the adjoint of a replicated tensor: see `pool/adaptive_layer.py`.

    Args:
        P_x: an axis for batch, channels and each spatial dim.
        output_size: of the spatial dims, one or for each; None for the size of the input.
        what: the name of the layer in errors.

    Raises:
        ValueError: sizes that make no sense, or a partition without such axes.
    """

    def __init__(self, P_x: Partition, output_size: OutputSize, *, what: str | None = None) -> None:
        super().__init__(P_x, output_size, what=what)

    def derive(self, mine: WorkerBoxes, dtype: torch.dtype) -> Averages:
        """Find what this worker averages."""
        first = self.first_spatial
        sizes = mine.plan.sizes
        divisors = [
            [reach.bin(output, size).size for output in range(result.start, result.stop)]
            for reach, size, result in zip(
                self.reaches(sizes, dtype), sizes[first:], mine.output[first:], strict=True
            )
        ]
        if all(size == 1 for size in mine.plan.output_sizes[first:]):
            # One mean: torch divides by the number of inputs; otherwise dim by dim.
            divisors = [[math.prod(along[0] for along in divisors)]]
        return Averages(self.local_bins(mine), divisors)

    def compute(self, box: torch.Tensor, mine: WorkerBoxes) -> torch.Tensor:
        """Average over this worker's bins."""
        group = self.sharing_group(mine.plan)
        averages: Averages = mine.plan.derived
        dtype = box.dtype
        # In the type that torch adds and divides in, so that it is rounded once.
        y = box.float() if dtype in (torch.float16, torch.bfloat16) else box
        for dim, bins in reversed(list(enumerate(averages.bins, self.first_spatial))):
            y = bin_sums(y, dim, bins)
        if group is not None:
            y = ops.total(y, group, what=self.what)
        return divided(y, averages.divisors).to(dtype)


def bin_sums(x: torch.Tensor, dim: int, bins: LocalBins) -> torch.Tensor:
    """Sum over each bin along a dim."""
    if bins.width == 1 and bins.indices is None:
        return x
    parts = bins.apart(x, dim)
    is_filled = bins.is_filled()
    if is_filled is not None:
        shape = [*is_filled.shape, *[1] * (x.dim() - dim - 1)]
        # Not a product with 0: what is in the next bin may be infinite.
        parts = torch.where(is_filled.view(shape).to(x.device), parts, parts.new_zeros(()))
    return parts.sum(dim + 1)


def divided(y: torch.Tensor, divisors: Sequence[Sequence[int]]) -> torch.Tensor:
    """Divide sums along one dim after the other, the first one first."""
    for place, along in enumerate(divisors):
        if len(set(along)) == 1:
            y = y if along[0] == 1 else y / along[0]
        else:
            shape = [-1, *[1] * (len(divisors) - 1 - place)]
            y = y / torch.tensor(along, dtype=y.dtype, device=y.device).view(shape)
    return y


class DistributedAdaptiveAvgPool1d(AdaptiveAvgPool):
    """`torch.nn.AdaptiveAvgPool1d` on a partition; see `AdaptiveAvgPool`."""

    num_spatial = 1
    torch_class = torch.nn.AdaptiveAvgPool1d


class DistributedAdaptiveAvgPool2d(AdaptiveAvgPool):
    """`torch.nn.AdaptiveAvgPool2d` on a partition; see `AdaptiveAvgPool`."""

    num_spatial = 2
    torch_class = torch.nn.AdaptiveAvgPool2d


class DistributedAdaptiveAvgPool3d(AdaptiveAvgPool):
    """`torch.nn.AdaptiveAvgPool3d` on a partition; see `AdaptiveAvgPool`."""

    num_spatial = 3
    torch_class = torch.nn.AdaptiveAvgPool3d
