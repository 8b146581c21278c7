"""Adaptive max pooling of a tensor whose dims are split.

    y_o = max of x_i  for i in bin o                 x*_i = sum of y*_o  for which i was the one

Of equal inputs, the first one in the bin is the one, as in torch. Where workers share an output
(`pool/adaptive_layer.py`), each finds the maximum of its part of the bin; the worker that has the
one gets the gradient, and the others none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from typing_extensions import Self

from kadril import ops
from kadril.nn.pool.adaptive_bins import LocalBins
from kadril.nn.pool.adaptive_layer import AdaptivePoolLayer, OutputSize
from kadril.nn.pool.pool_layer import nothing_with_indices
from kadril.ops.box_plan import WorkerBoxes
from kadril.partition import Group, Partition

__all__ = [
    "AdaptiveMaxPool",
    "DistributedAdaptiveMaxPool1d",
    "DistributedAdaptiveMaxPool2d",
    "DistributedAdaptiveMaxPool3d",
]


class AdaptiveMaxPool(AdaptivePoolLayer):
    """Base of `DistributedAdaptiveMaxPool1d`, `2d` and `3d`: torch's layers, on a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x spatial, of any size; without N where `P_x` has no axis for it |
    | y | the balanced block of N x C x output size; whole along dims of output size 1 |
    | indices | as y; positions in the global input, flat over its spatial dims |

    Where an axis splits a dim whose output size is 1, the result is replicated along that axis,
    with the adjoint of a replicated tensor: see `pool/adaptive_layer.py`.

    Args:
        P_x: an axis for batch, channels and each spatial dim.
        output_size: of the spatial dims, one or for each; None for the size of the input.
        return_indices: whether to return where the maxima are, too.
        what: the name of the layer in errors.

    Raises:
        ValueError: sizes that make no sense, or a partition without such axes.
    """

    def __init__(
        self,
        P_x: Partition,
        output_size: OutputSize,
        return_indices: bool = False,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, output_size, what=what)
        self.return_indices = return_indices

    @classmethod
    def of(cls, layer: torch.nn.Module, P_x: Partition, *, what: str | None = None) -> Self:
        """Make the twin of a torch layer.

        Raises:
            TypeError: it is of another kind.
        """
        given = cls.check_kind(layer)
        return cls(P_x, given.output_size, given.return_indices, what=what)

    def derive(self, mine: WorkerBoxes, dtype: torch.dtype) -> list[LocalBins]:
        """Return the bins of this worker, for each spatial dim."""
        return self.local_bins(mine)

    def nothing(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return a copy, and indices of nothing if asked for."""
        return nothing_with_indices(x) if self.return_indices else x.clone()

    def compute(
        self, box: torch.Tensor, mine: WorkerBoxes
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Find the maxima of this worker's bins, and where they are."""
        group = self.sharing_group(mine.plan)
        y, indices = bin_maxima(box, mine.plan.derived, mine, self.first_spatial)
        if group is not None:
            y, indices = shared_maxima(y, indices, group, self.what)
        return (y, indices) if self.return_indices else y


def bin_maxima(
    box: torch.Tensor, bins: Sequence[LocalBins], mine: WorkerBoxes, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the maximum of each bin of a box, and where in the global tensor it is.

    Along the last dim first: so that of equal ones, the first in the order of memory is found.
    """
    y = box
    indices = torch.zeros_like(box, dtype=torch.int64)
    for dim, along in reversed(list(enumerate(bins, first))):
        y, steps = along.apart(y, dim).max(dim + 1)
        chosen = steps.unsqueeze(dim + 1)
        indices = along.apart(indices, dim).gather(dim + 1, chosen).squeeze(dim + 1)
        starts = (along.starts() + mine.box[dim].start).to(box.device)
        places = steps + starts.view([-1, *[1] * (y.dim() - dim - 1)])
        indices = indices + places * math.prod(mine.plan.sizes[dim + 1 :])
    return y, indices


def shared_maxima(
    y: torch.Tensor, indices: torch.Tensor, group: Group, what: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the maxima over a group, replicated; of equal ones the first gets the gradient."""
    values = stacked_over(y.detach(), group, what)
    places = stacked_over(indices, group, what)
    is_best = (values == values.amax(0)) | values.isnan()
    places = torch.where(is_best, places, torch.iinfo(torch.int64).max)
    first = places.amin(0)
    is_mine = places[group.transport.rank] == first
    # One summand is the maximum, and the others are zeros.
    return ops.total(torch.where(is_mine, y, y.new_zeros(())), group, what=what), first


def stacked_over(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """Stack the tensors of all ranks of a group."""
    transport = group.transport
    stacked = x.new_empty((transport.size, *x.shape))
    transport.allgatherv(
        x.contiguous().view(-1), stacked.view(-1), [x.numel()] * transport.size, name=what
    )
    return stacked


class DistributedAdaptiveMaxPool1d(AdaptiveMaxPool):
    """`torch.nn.AdaptiveMaxPool1d` on a partition; see `AdaptiveMaxPool`."""

    num_spatial = 1
    torch_class = torch.nn.AdaptiveMaxPool1d


class DistributedAdaptiveMaxPool2d(AdaptiveMaxPool):
    """`torch.nn.AdaptiveMaxPool2d` on a partition; see `AdaptiveMaxPool`."""

    num_spatial = 2
    torch_class = torch.nn.AdaptiveMaxPool2d


class DistributedAdaptiveMaxPool3d(AdaptiveMaxPool):
    """`torch.nn.AdaptiveMaxPool3d` on a partition; see `AdaptiveMaxPool`."""

    num_spatial = 3
    torch_class = torch.nn.AdaptiveMaxPool3d
