"""Adaptive max pooling of a tensor whose dims are split.

    y_o = max of x_i  for i in bin o                 x*_i = sum of y*_o  for which i was the one

Of equal inputs, the first one in the bin is the one, as in torch. Where workers share an output
(`pool/adaptive_layer.py`), each finds the maximum of its part of the bin; the worker that has the
one gets the gradient, and the others none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from typing_extensions import Self

from kadril import ops
from kadril.nn.box_layer import BoxPlan, refuse_data
from kadril.nn.pool.adaptive_bins import LocalBins
from kadril.nn.pool.adaptive_layer import AdaptivePoolLayer, OutputSize
from kadril.ops.calling import uncompiled
from kadril.partition import Group, Partition

__all__ = [
    "AdaptiveMaxPool",
    "DistributedAdaptiveMaxPool1d",
    "DistributedAdaptiveMaxPool2d",
    "DistributedAdaptiveMaxPool3d",
]


class Maxima(NamedTuple):
    """What one worker looks for maxima in.

    Attributes:
        bins: for each spatial dim.
        group: who share the outputs; None where nobody does.
    """

    bins: list[LocalBins]
    group: Group | None


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
        """The twin of a torch layer.

        Raises:
            TypeError: it is of another kind.
        """
        given = cls.check_kind(layer)
        return cls(P_x, given.output_size, given.return_indices, what=what)

    def derive(self, plan: BoxPlan, dtype: torch.dtype) -> Maxima:
        """What this worker does; collective over the partition where workers share outputs."""
        axes = self.shared_axes(plan)
        return Maxima(self.local_bins(plan), self.P_x.axis_group(axes) if axes else None)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Pool; collective over the partition.

        Args:
            x: this worker's block; a zero-volume tensor on other ranks.

        Returns:
            Its block of the output, and of the indices if asked for; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not fit to the partition, or an output dim of a size other
                than 1 has fewer elements than there are workers along its axis; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.P_x.active:
            refuse_data(x, self.what)
            nothing = x.clone()
            return (nothing, nothing.detach().long()) if self.return_indices else nothing
        box, plan = self._gather(x)
        maxima: Maxima = plan.derived
        y, indices = bin_maxima(box, maxima.bins, plan, self.first_spatial)
        if maxima.group is not None:
            y, indices = shared_maxima(y, indices, maxima.group, self.what)
        return (y, indices) if self.return_indices else y


def bin_maxima(
    box: torch.Tensor, bins: Sequence[LocalBins], plan: BoxPlan, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each bin of a box, and where in the global tensor it is.

    Along the last dim first: so that of equal ones, the first in the order of memory is found.
    """
    y = box
    indices = torch.zeros_like(box, dtype=torch.int64)
    for dim, along in reversed(list(enumerate(bins, first))):
        y, steps = along.apart(y, dim).max(dim + 1)
        chosen = steps.unsqueeze(dim + 1)
        indices = along.apart(indices, dim).gather(dim + 1, chosen).squeeze(dim + 1)
        starts = (along.starts() + plan.box[dim].start).to(box.device)
        places = steps + starts.view([-1, *[1] * (y.dim() - dim - 1)])
        indices = indices + places * math.prod(plan.sizes[dim + 1 :])
    return y, indices


def shared_maxima(
    y: torch.Tensor, indices: torch.Tensor, group: Group, what: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima over a group, replicated; gradients get to who has the first of equal ones."""
    values = everyones(y.detach(), group, what)
    places = everyones(indices, group, what)
    is_best = (values == values.amax(0)) | values.isnan()
    places = torch.where(is_best, places, torch.iinfo(torch.int64).max)
    first = places.amin(0)
    is_mine = places[group.transport.rank] == first
    # One summand is the maximum, and the others are zeros.
    return ops.total(torch.where(is_mine, y, y.new_zeros(())), group, what=what), first


def everyones(x: torch.Tensor, group: Group, what: str) -> torch.Tensor:
    """The tensors of all ranks of a group, stacked."""
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
