"""Average pooling of a tensor whose dims are split.

    y_o = 1/n_o sum of x_i  for i in the window of o        x*_i = sum of y*_o / n_o  for o around i

n_o is the number of inputs in the window of the *global* tensor, with padding or without, or a
number that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from kadril.nn.pool.pool_layer import PoolLayer, Size
from kadril.ops.box_plan import WorkerBoxes
from kadril.partition import Partition

__all__ = ["AvgPool", "DistributedAvgPool1d", "DistributedAvgPool2d", "DistributedAvgPool3d"]

# The two-dimensional one does one dimension too: only it takes a divisor.
POOLINGS: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.avg_pool2d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


class AvgPool(PoolLayer):
    """Base of `DistributedAvgPool1d`, `2d` and `3d`: torch's layers, on a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x spatial, of any size; without N where `P_x` has no axis for it |
    | y | the balanced block of N x C x output spatial |

    One exchange each in forward and backward pass, none where every worker has its windows' inputs.

    Args:
        P_x: an axis for batch, channels and each spatial dim.
        kernel_size: of the window.
        stride: of the window; `kernel_size` where None.
        padding: zeros on both sides, at most half of the kernel.
        ceil_mode: whether a last window may go beyond the padding; what is beyond is not counted.
        count_include_pad: whether the zeros are counted.
        divisor_override: instead of any count; not for `DistributedAvgPool1d`, as in torch.
        what: the name of the layer in errors.

    Raises:
        ValueError: settings that make no sense, or a partition without such axes.
    """

    torch_settings = ("count_include_pad", "divisor_override")

    def __init__(
        self,
        P_x: Partition,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        what: str | None = None,
    ) -> None:
        super().__init__(P_x, kernel_size, stride, padding, 1, ceil_mode, what)
        if divisor_override == 0:
            raise ValueError(f"{self.what}: divisor_override must not be 0")
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def compute(self, box: torch.Tensor, mine: WorkerBoxes) -> torch.Tensor:
        """Average over the windows of this worker's outputs."""
        counts: list[list[int]] = mine.plan.derived
        if all(len(set(along)) == 1 for along in counts):
            return self._sums(box, math.prod(along[0] for along in counts))
        # In the type that torch adds and divides in, so that it is rounded once.
        is_small = box.dtype in (torch.float16, torch.bfloat16)
        sums = self._sums(box.float() if is_small else box, 1)
        rounding = None if sums.dtype.is_floating_point else "trunc"
        return torch.div(sums, grid_of(counts, sums), rounding_mode=rounding).to(box.dtype)

    def derive(self, mine: WorkerBoxes, dtype: torch.dtype) -> list[list[int]]:
        """Return the number of inputs in each window, for each spatial dim: factors of n_o."""
        if self.divisor_override is not None:
            return [[self.divisor_override], *[[1]] * (self.num_spatial - 1)]
        first = self.first_spatial
        return [
            window.counts(outputs, size, with_padding=self.count_include_pad)
            for window, outputs, size in zip(
                self.windows, mine.output[first:], mine.plan.sizes[first:], strict=True
            )
        ]

    def _sums(self, box: torch.Tensor, divisor: int) -> torch.Tensor:
        """Sum over each window, and divide."""
        is_line = self.num_spatial == 1
        y = POOLINGS[self.num_spatial](
            box.unsqueeze(-2) if is_line else box,
            [*[1] * is_line, *self.kernel_size],
            [*[1] * is_line, *self.stride],
            [*[0] * is_line, *self.torch_padding],
            self.ceil_mode,
            divisor_override=divisor,
        )
        return y.squeeze(-2) if is_line else y


def grid_of(counts: list[list[int]], like: torch.Tensor) -> torch.Tensor:
    """Return the products of one count of each dim."""
    grid = torch.ones((), dtype=like.dtype, device=like.device)
    for along in counts:
        grid = grid.unsqueeze(-1) * torch.tensor(along, dtype=like.dtype, device=like.device)
    return grid


class DistributedAvgPool1d(AvgPool):
    """`torch.nn.AvgPool1d` on a partition; see `AvgPool`."""

    num_spatial = 1
    torch_class = torch.nn.AvgPool1d


class DistributedAvgPool2d(AvgPool):
    """`torch.nn.AvgPool2d` on a partition; see `AvgPool`."""

    num_spatial = 2
    torch_class = torch.nn.AvgPool2d


class DistributedAvgPool3d(AvgPool):
    """`torch.nn.AvgPool3d` on a partition; see `AvgPool`."""

    num_spatial = 3
    torch_class = torch.nn.AvgPool3d
