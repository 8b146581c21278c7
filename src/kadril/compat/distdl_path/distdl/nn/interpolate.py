"""Interpolation of a part of a tensor: as if the whole had been interpolated, and then cut.

Positions and weights are those of `kadril.nn`, which are torch's; what lies beyond the part is
taken to be like its border.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kadril.nn.interpolation.interpolated_box import Weighted, along_each_dim
from kadril.nn.interpolation.taps import AlongDim, taps_type
from kadril.partition import Interval

__all__ = ["Interpolate"]

MODES = ("nearest", "linear")


def check_mode(mode: str) -> None:
    """Refuse a mode that is not there.

    Raises:
        NotImplementedError: neither nearest nor linear.
    """
    if mode not in MODES:
        raise NotImplementedError(
            f"mode {mode!r}; there are {' and '.join(MODES)} here, and more in kadril.nn"
        )


def scale_factors(
    scale_factor: float | Sequence[float] | None, num_dims: int
) -> tuple[float, ...] | None:
    """Return the factor of each feature dim, given for each or for all."""
    if scale_factor is None:
        return None
    factors = torch.as_tensor(scale_factor, dtype=torch.float64)
    return tuple(factors.expand(num_dims).tolist())


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
        starts, stops, self.sizes = (torch.as_tensor(each).tolist()[2:] for each in given)
        y_starts, y_stops, self.out_sizes = (torch.as_tensor(each).tolist()[2:] for each in wanted)
        self.inputs = [Interval(*bounds) for bounds in zip(starts, stops, strict=True)]
        self.outputs = [Interval(*bounds) for bounds in zip(y_starts, y_stops, strict=True)]
        self.scale_factors = scale_factors(scale_factor, len(self.sizes))
        self.mode, self.align_corners = mode, align_corners and mode == "linear"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the output."""
        taps = [self._taps(dim, input.dtype) for dim in range(len(self.sizes))]
        return along_each_dim(input, taps, 2)

    def _taps(self, dim: int, dtype: torch.dtype) -> Weighted:
        """Return which elements of the block outputs are made of along a feature dim, and how."""
        scale = None if self.scale_factors is None else self.scale_factors[dim]
        along = AlongDim(
            self.mode, self.out_sizes[dim], scale, self.align_corners, taps_type(dtype)
        )
        found = along.taps(self.outputs[dim], self.sizes[dim])
        block = self.inputs[dim]
        indices = torch.from_numpy(np.clip(found.indices - block.start, 0, block.size - 1))
        weights = None if found.weights is None else list(torch.from_numpy(found.weights))
        return Weighted(list(indices), weights)
