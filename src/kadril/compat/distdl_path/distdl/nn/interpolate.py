"""Interpolation of a part of a tensor: as if the whole had been interpolated, and then cut.

Where an output lies among the inputs is torch's own word: it is asked to interpolate 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy.typing as npt
import torch
from torch.nn import functional

from kadril.partition import Interval

__all__ = ["Grid", "Interpolate"]

MODES = ("nearest", "linear")


class Grid(NamedTuple):
    """Inputs and outputs along one dim.

    Attributes:
        size: of the global input.
        out_size: of the global output.
        scale_factor: that was asked for; None where the size was.
        mode: "nearest" or "linear".
        align_corners: whether the first and last elements of both lie together.
    """

    size: int
    out_size: int
    scale_factor: float | None
    mode: str
    align_corners: bool

    def positions(self, outputs: Interval) -> torch.Tensor:
        """Where outputs lie among the inputs."""
        places = torch.arange(self.size, dtype=torch.float64).view(1, 1, -1)
        align = self.align_corners if self.mode == "linear" else None
        if self.scale_factor is None:
            found = functional.interpolate(
                places, size=self.out_size, mode=self.mode, align_corners=align
            )
        else:
            found = functional.interpolate(
                places, scale_factor=self.scale_factor, mode=self.mode, align_corners=align
            )
        return found[0, 0, outputs.start : outputs.stop]

    def needed(self, outputs: Interval) -> Interval:
        """The inputs that outputs are made of."""
        positions = self.positions(outputs)
        last = int(positions[-1])
        if self.mode == "linear":
            last = min(last + 1, self.size - 1)
        return Interval(int(positions[0]), last + 1)

    def interpolate(self, x: torch.Tensor, dim: int, start: int, outputs: Interval) -> torch.Tensor:
        """Outputs, from the inputs from `start` on; the outermost ones stand for all beyond."""
        positions = self.positions(outputs)
        before = positions.floor().long()
        last = x.shape[dim] - 1
        low = x.index_select(dim, (before - start).clamp(0, last))
        if self.mode == "nearest":
            return low
        after = (before + 1).clamp(max=self.size - 1)
        shape = [-1 if each == dim else 1 for each in range(x.dim())]
        share = (positions - before).to(x.dtype).view(shape)
        return low * (1 - share) + x.index_select(dim, (after - start).clamp(0, last)) * share


def check_mode(mode: str) -> None:
    """Refuse what there is not.

    Raises:
        NotImplementedError: neither nearest nor linear.
    """
    if mode not in MODES:
        raise NotImplementedError(
            f"mode {mode!r}; there are {' and '.join(MODES)} here, and more in kadril.nn"
        )


def scale_of(scale_factor: float | Sequence[float] | None, dim: int) -> float | None:
    """The factor of one feature dim, given for each or for all."""
    if scale_factor is None:
        return None
    factors = torch.as_tensor(scale_factor, dtype=torch.float64)
    return float(factors[dim] if factors.dim() else factors)


class Interpolate(torch.nn.Module):
    """Interpolates a block to a block; sequential.

    Args:
        x_local_start, x_local_stop: the block of the input, one index for each dim.
        x_global_shape: of the input.
        y_local_start, y_local_stop: the block of the output.
        y_global_shape: of the output.
        scale_factor: of the feature dims; that of the shapes where None.
        mode: "nearest" or "linear".
        align_corners: as torch's.

    Raises:
        NotImplementedError: another mode.
    """

    def __init__(
        self,
        x_local_start: npt.ArrayLike,
        x_local_stop: npt.ArrayLike,
        x_global_shape: npt.ArrayLike,
        y_local_start: npt.ArrayLike,
        y_local_stop: npt.ArrayLike,
        y_global_shape: npt.ArrayLike,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "linear",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        check_mode(mode)
        given = (x_local_start, x_local_stop, x_global_shape)
        wanted = (y_local_start, y_local_stop, y_global_shape)
        starts, self.x_stops, sizes = (torch.as_tensor(each).tolist() for each in given)
        y_starts, y_stops, out_sizes = (torch.as_tensor(each).tolist() for each in wanted)
        self.starts = starts
        self.outputs = [Interval(*bounds) for bounds in zip(y_starts, y_stops, strict=True)]
        self.grids = [
            Grid(size, out_size, scale_of(scale_factor, dim - 2), mode, align_corners)
            for dim, (size, out_size) in enumerate(zip(sizes, out_sizes, strict=True))
        ]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the output."""
        y = input
        for dim in range(2, input.dim()):
            y = self.grids[dim].interpolate(y, dim, self.starts[dim], self.outputs[dim])
        return y
