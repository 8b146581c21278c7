"""Local contrast normalisation: subtractive, then divisive.

The equations are those of `kadril.nn.norm.local_contrast`. Both means need the surroundings of a
block, of the sum over channels: `widen` gives them, and `narrow` is its adjoint. In one process
they pad and cut off; on towers they exchange halos, and pad only at the edges of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from kadril.experiment.backend import Backend
from kadril.experiment.layers.layer import REQUIRED
from kadril.experiment.layers.local_layer import LocalLayer, LocalLayerDist
from kadril.nn.norm.local_contrast import deviation_around, gaussian_window, subtract_mean

__all__ = ["LCNLayer", "LCNLayerDist"]


class LCNLayer(LocalLayer):
    """Local contrast normalisation with a Gaussian window over all channels.

    Args:
        name, backend, batch_size, pos: see `BaseLayer`.
        nifm: number of channels.
        ifmshape: rows and columns of input and output.
        fshape: rows and columns of the window, both odd.
        stride: always 1.

    Attributes:
        subout: what is left after the subtraction, of the last `fprop`.
        deviation: what it was divided by.

    Raises:
        ValueError: an even window, or a stride.
    """

    keeps_size = True
    subout: torch.Tensor
    deviation: torch.Tensor

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
        nifm: int = REQUIRED,
        ifmshape: Sequence[int] = REQUIRED,
        fshape: Sequence[int] = REQUIRED,
        stride: int = 1,
    ) -> None:
        super().__init__(name, backend, batch_size, pos)
        self.set_sizes(nifm, nifm, ifmshape, fshape, stride)
        if stride != 1 or self.fheight % 2 == 0 or self.fwidth % 2 == 0:
            raise ValueError(f"{name}: a window around each pixel has odd sizes, and stride 1")
        self.window = gaussian_window(self.fshape)

    def widen(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps with their surroundings: zeros."""
        below, beside = self.fheight // 2, self.fwidth // 2
        return functional.pad(maps, [beside, beside, below, below])

    def narrow(self, maps: torch.Tensor) -> torch.Tensor:
        """Return x* = widen* maps: what lies on the surroundings is dropped."""
        below, beside = self.fheight // 2, self.fwidth // 2
        return maps[:, :, below : below + self.ofmheight, beside : beside + self.ofmwidth]

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised maps."""
        s = subtract_mean(self.as_output_maps(inputs), self.widen, self.window)
        deviation = deviation_around(s, self.widen, self.window)
        if not torch.is_grad_enabled():
            self.subout, self.deviation = s, deviation
        return (s / deviation).flatten(1)

    def spread(self, means: torch.Tensor) -> torch.Tensor:
        """Return g^T * means, the same for each channel: the adjoint of the mean around a pixel."""
        # On zeros all around, a convolution with the turned window is the transposed one, which
        # torch has no fast kernel for.
        weight = turned_window(self.fshape, self.nifm, means.dtype)
        padding = (self.fheight - 1, self.fwidth - 1)
        return self.narrow(functional.conv2d(means, weight, padding=padding))

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror` through division and subtraction, as the last `fprop` has left them."""
        if self.is_first:
            return
        with torch.no_grad():
            s, deviation, error = self.subout, self.deviation, self.as_output_maps(error)
            slopes = (error * s).sum(1, keepdim=True) / deviation**3
            s_error = error / deviation - s * self.spread(slopes)
            self.berror = (s_error - self.spread(s_error.sum(1, keepdim=True))).flatten(1)


@functools.cache
def turned_window(size: tuple[int, int], num_channels: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the Gaussian window of the mean over all channels, turned: the filter of `spread`."""
    window: torch.Tensor = gaussian_window(size) / num_channels
    return window.flip(0, 1).to(dtype)[None, None]


class LCNLayerDist(LocalLayerDist, LCNLayer):
    """Local contrast normalisation of which each rank makes its part.

    It exchanges the halos of its input and of the difference, and `bprop` gives both back: `berror`
    is of this rank's block.
    """

    hands_back_halos = True

    def adjust_for_dist(self) -> None:
        """Take the size of this rank's block, and of the view of it."""
        if self.input is None:
            return
        local = self.input.local_array
        self.take_shape((local.shape[0], local.shape[1]))
        self.ifmshape = self.ifmheight, self.ifmwidth = local.ifmshape[0], local.ifmshape[1]
        self.ifmsize = self.ifmheight * self.ifmwidth

    def widen(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps with their surroundings: of other ranks, or zeros beyond the image."""
        (above, below), (left, right) = self.view.local_array.padding
        return functional.pad(self.view.get_fprop_view(maps), [left, right, above, below])

    def narrow(self, maps: torch.Tensor) -> torch.Tensor:
        """Return x* = widen* maps: what lies on other ranks' pixels is added there."""
        (above, _), (left, _) = self.view.local_array.padding
        chunk = maps[:, :, above : above + self.ifmheight, left : left + self.ifmwidth]
        return self.view.get_bprop_view(chunk.contiguous())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised maps of this rank's block, with a graph; collective."""
        return self.compute(inputs)
