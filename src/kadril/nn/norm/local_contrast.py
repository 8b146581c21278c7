"""Local contrast normalisation of images whose rows and columns are split.

Each pixel of each channel minus the weighted mean of its surroundings in all channels, and then
divided by the weighted deviation of the surroundings: subtractive, then divisive.

    s_c = x_c - g * (sum_k x_k)                 g: a window, whose sum over all channels is 1
    d   = sqrt(g * (sum_k s_k^2))               1 where that is 0
    y_c = s_c / d

Beyond the edges of the image x and s are zeros. Both convolutions need the surroundings of a
block, so there are two exchanges of halos, of one channel each: sums over channels are taken first.
The backward pass adds both back:

    s*_c = y*_c / d  -  s_c  g^T * (sum_k y*_k s_k / d^3)
    x*_c = s*_c      -       g^T * (sum_k s*_k)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Self

import torch
from torch.nn import functional

from kadril import ops
from kadril.nn.box_layer import per_dim
from kadril.nn.pool.pool_layer import Size
from kadril.nn.sharing import refuse_data
from kadril.ops.calling import uncompiled
from kadril.ops.halo import widen
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = [
    "DistributedLocalContrastNorm2d",
    "deviation_around",
    "gaussian_window",
    "subtract_mean",
    "surroundings",
]

# From a block to the block with its surroundings.
Widen = Callable[[torch.Tensor], torch.Tensor]


def gaussian_window(kernel_size: tuple[int, int], sigma: float | None = None) -> torch.Tensor:
    """Return a Gaussian window whose sum is 1, in float64.

    Args:
        kernel_size: rows and columns, both odd.
        sigma: its deviation; a third of the distance from the middle to a corner where None.
    """
    rows, columns = (torch.arange(size, dtype=torch.float64) - size // 2 for size in kernel_size)
    corner = math.hypot(*(size // 2 for size in kernel_size))
    sigma = sigma or corner / 3 or 1.0
    squares = rows.square()[:, None] + columns.square()[None, :]
    window = torch.exp(-squares / (2 * sigma**2))
    return window / window.sum()


def surroundings(box: torch.Tensor, window: torch.Tensor, num_channels: int) -> torch.Tensor:
    """Return the weighted mean over the window and all channels.

    Args:
        box: the sum over channels, with its surroundings: N x 1 x H x W.
        window: see `gaussian_window`.
        num_channels: that were summed.
    """
    rows, columns = (
        have - need + 1 for have, need in zip(box.shape[2:], window.shape, strict=True)
    )
    if rows < 1 or columns < 1:  # of a block without pixels, for which torch has no convolution
        return box[:, :, :rows, :columns]
    weight = (window / num_channels).to(box.dtype)
    return functional.conv2d(box, weight[None, None])


def subtract_mean(x: torch.Tensor, widen: Widen, window: torch.Tensor) -> torch.Tensor:
    """Subtract from each pixel the mean of its surroundings.

    Args:
        x: a block, N x C x H x W.
        widen: gives a block of one channel its surroundings, half a window on each side.
        window: see `gaussian_window`.
    """
    return x - surroundings(widen(x.sum(1, keepdim=True)), window, x.shape[1])


def deviation_around(s: torch.Tensor, widen: Widen, window: torch.Tensor) -> torch.Tensor:
    """Return the deviation around each pixel, 1 where that is 0; arguments as `subtract_mean`."""
    variance = surroundings(widen(s.square().sum(1, keepdim=True)), window, s.shape[1])
    # The root has no derivative at 0; where all around is 0, so is s, and y.
    return torch.where(variance == 0, torch.ones_like(variance), variance).sqrt()


def pad_zeros(x: torch.Tensor, kernel_size: tuple[int, int]) -> torch.Tensor:
    """Return whole images with the surroundings that a window needs: zeros."""
    below, beside = (size // 2 for size in kernel_size)
    return functional.pad(x, [beside, beside, below, below])


class DistributedLocalContrastNorm2d(torch.nn.Module):
    """Local contrast normalisation on a partition: see the equations at the top of the file.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x H x W, of any size |
    | y | the same block |

    Two exchanges of halos each in forward and backward pass. There are no parameters.

    Args:
        P_x: axes for batch, channels, rows and columns; channels are not split. None for the
            ordinary layer, on whole images: `distribute` makes its partitioned twin.
        kernel_size: of the window; odd.
        sigma: of the Gaussian window; a third of the way to its corner where None.
        window: instead of the Gaussian one; its sum should be 1.
        what: the name of the layer in errors.

    Raises:
        ValueError: an even window, a window of another size, or a partition that splits channels;
            when called, the input does not match the partition.
    """

    window: torch.Tensor

    def __init__(
        self,
        P_x: Partition | None,
        kernel_size: Size,
        sigma: float | None = None,
        *,
        window: torch.Tensor | None = None,
        what: str | None = None,
    ) -> None:
        super().__init__()
        name = what or type(self).__name__
        rows, columns = per_dim(kernel_size, 2, "kernel_size", name)
        self.kernel_size = (rows, columns)
        self.what = what or f"{name}(kernel {text(self.kernel_size)})"
        self.P_x = P_x
        if P_x is not None and (P_x.dim != 4 or P_x.shape[1] != 1):
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs 4 axes, for batch,"
                " channels, rows and columns, and the one for channels must have length 1"
            )
        if any(size < 1 or size % 2 == 0 for size in self.kernel_size):
            raise ValueError(f"{self.what}: a window around a pixel has odd sizes")
        if window is None:
            window = gaussian_window(self.kernel_size, sigma)
        if tuple(window.shape) != self.kernel_size:
            raise ValueError(
                f"{self.what}: window has shape {list(window.shape)}, and kernel_size says"
                f" {list(self.kernel_size)}"
            )
        self.register_buffer("window", window, persistent=False)
        self.exchange: Widen
        if P_x is None:
            self.exchange = partial(pad_zeros, kernel_size=self.kernel_size)
        else:
            halos = [widen(size // 2, size // 2) for size in self.kernel_size]
            self.exchange = ops.HaloExchanger(P_x, [None, None, *halos], what=self.what)

    @classmethod
    def of(
        cls, layer: DistributedLocalContrastNorm2d, P_x: Partition, *, what: str | None = None
    ) -> Self:
        """Return the partitioned twin of an ordinary layer, which was made with None for `P_x`.

        Args:
            layer: see above.
            P_x: where the input is.
            what: name of the layer in errors.
        """
        return cls(P_x, layer.kernel_size, window=layer.window, what=what)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise; collective over the partition. See the class."""
        if self.P_x is not None and not self.P_x.active:
            refuse_data(x, self.what)
            return x.clone()
        s = subtract_mean(x, self.exchange, self.window)
        return s / deviation_around(s, self.exchange, self.window)

    def extra_repr(self) -> str:
        """Return the settings, and where the layer is."""
        place = None if self.P_x is None else text(self.P_x.shape)
        return f"P_x={place}, kernel_size={self.kernel_size}"
