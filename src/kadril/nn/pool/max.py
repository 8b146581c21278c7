"""Max pooling of a tensor whose dims are split.

    y_o = max of x_i  for i in the window of o         x*_i = sum of y*_o  for which i was the one

Of equal inputs, the first one in the window is the one, as in torch; also where the window reaches
over several workers. What lies beyond the edges is less than any input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from kadril.nn.pool.pool_layer import PoolLayer, Size, nothing_with_indices
from kadril.ops.box_plan import WorkerBoxes
from kadril.partition import Partition

__all__ = ["DistributedMaxPool1d", "DistributedMaxPool2d", "DistributedMaxPool3d", "MaxPool"]

POOLINGS: dict[int, Callable[..., Any]] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}


class MaxPool(PoolLayer):
    """Base of `DistributedMaxPool1d`, `2d` and `3d`: torch's layers, on a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x spatial, of any size; without N where `P_x` has no axis for it |
    | y | the balanced block of N x C x output spatial |
    | indices | as y; positions in the global input, flat over its spatial dims |

    One exchange each in forward and backward pass, none where every worker has its windows' inputs.

    Args:
        P_x: an axis for batch, channels and each spatial dim.
        kernel_size: of the window.
        stride: of the window; `kernel_size` where None.
        padding: on both sides, at most half of the kernel.
        dilation: from one element of the window to the next.
        return_indices: whether to return where the maxima are, too.
        ceil_mode: whether a last window may go beyond the padding.
        what: the name of the layer in errors.

    Raises:
        ValueError: settings that make no sense, or a partition without such axes.
    """

    torch_settings = ("dilation", "return_indices")

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, kernel_size, stride, padding, dilation, ceil_mode, what)
        self.return_indices = return_indices

    def fill(self, dtype: torch.dtype) -> float:
        """Return a value less than any input."""
        return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min

    def nothing(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return a copy, and indices of nothing if asked for."""
        return nothing_with_indices(x) if self.return_indices else x.clone()

    def compute(
        self, box: torch.Tensor, mine: WorkerBoxes
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Find the maxima of the windows of this worker's outputs, and where they are."""
        result = POOLINGS[self.num_spatial](
            box,
            self.kernel_size,
            self.stride,
            self.torch_padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )
        if not self.return_indices:
            y: torch.Tensor = result
            return y
        return result[0], global_indices(result[1], mine, self.first_spatial)


def global_indices(indices: torch.Tensor, mine: WorkerBoxes, first: int) -> torch.Tensor:
    """Turn flat positions in the spatial dims of a box into those in the global tensor."""
    places = []
    for box in reversed(mine.box[first:]):
        places.append(indices % box.size + box.start)
        indices = indices // box.size
    flat = torch.zeros_like(indices)
    for place, size in zip(reversed(places), mine.plan.sizes[first:], strict=True):
        flat = flat * size + place
    return flat


class DistributedMaxPool1d(MaxPool):
    """`torch.nn.MaxPool1d` on a partition; see `MaxPool`."""

    num_spatial = 1
    torch_class = torch.nn.MaxPool1d


class DistributedMaxPool2d(MaxPool):
    """`torch.nn.MaxPool2d` on a partition; see `MaxPool`."""

    num_spatial = 2
    torch_class = torch.nn.MaxPool2d


class DistributedMaxPool3d(MaxPool):
    """`torch.nn.MaxPool3d` on a partition; see `MaxPool`."""

    num_spatial = 3
    torch_class = torch.nn.MaxPool3d
