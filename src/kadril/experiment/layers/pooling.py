"""Poolings: the maximum, the Euclidean norm or the average of each field of each channel.

max        y = max x               x*_i = y*               for the first i that is the maximum
L2         y = sqrt(sum x^2)       x*_i = y* x_i / y       1 instead of y where that is 0
average    y = sum x / n           x*_i = y* / n
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from kadril.experiment.backend import Backend
from kadril.experiment.layers.layer import REQUIRED
from kadril.experiment.layers.local_layer import LocalLayer, ViewLayerDist

__all__ = [
    "AveragePoolingLayer",
    "AveragePoolingLayerDist",
    "L2PoolingLayer",
    "L2PoolingLayerDist",
    "MaxPoolingLayer",
    "MaxPoolingLayerDist",
    "PoolingLayer",
]


class PoolingLayer(LocalLayer):
    """Base of the poolings, which have no weights.

    Args:
        name, backend, batch_size, pos: see `BaseLayer`.
        nifm: number of channels.
        ifmshape: rows and columns of the input.
        fshape: rows and columns of a field.
        stride: from one field to the next.
    """

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

    def shifted(self, maps: torch.Tensor, dim: int, place: int) -> torch.Tensor:
        """Return, along a dim, the inputs at one place of each field; a view."""
        count = self.ofmshape[dim - 2]
        slices = [slice(None)] * dim
        last = place + self.stride * (count - 1) + 1
        return maps[(*slices, slice(place, last, self.stride))]

    def at_place(self, maps: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
        """Return the inputs at one row and column of each field; a view."""
        return self.shifted(self.shifted(maps, 2, place[0]), 3, place[1])

    def field_sums(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the sum of each field: of rows first, then of columns."""
        for dim, size in zip((2, 3), self.fshape, strict=True):
            total = self.shifted(maps, dim, 0)
            for place in range(1, size):
                if place == 1 or torch.is_grad_enabled():
                    total = total + self.shifted(maps, dim, place)
                else:  # the first sum is memory of its own
                    total += self.shifted(maps, dim, place)
            maps = total
        return maps

    def spread_over_fields(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum, at each input, of the values of all fields it is in: the adjoint."""
        for dim, size, inputs in zip((3, 2), self.fshape[::-1], self.ifmshape[::-1], strict=True):
            shape = list(values.shape)
            shape[dim] = inputs
            total = values.new_zeros(shape)
            for place in range(size):
                self.shifted(total, dim, place).add_(values)
            values = total
        return values


class MaxPoolingLayer(PoolingLayer):
    """The maximum of each field; the first one where several are equal."""

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the maximum of each field."""
        maps = self.as_maps(inputs)
        if torch.is_grad_enabled() and inputs.requires_grad:
            return functional.max_pool2d(maps, self.fshape, self.stride).flatten(1)
        for dim, size in zip((2, 3), self.fshape, strict=True):
            most = self.shifted(maps, dim, 0)
            for place in range(1, size):
                most = torch.maximum(most, self.shifted(maps, dim, place))
            maps = most
        return maps.flatten(1)

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`: the error of a field goes to its maximum, the first of equal ones."""
        if self.is_first:
            return
        maps, rest = self.as_maps(inputs), self.as_output_maps(error)
        most = self.as_output_maps(self.compute(inputs.detach()))
        back, is_it = torch.zeros_like(maps), torch.empty_like(most)
        places = list(itertools.product(range(self.fheight), range(self.fwidth)))
        for place in places:
            # `rest` is the error of fields whose maximum was not met yet, and 0 of all others.
            part = rest
            if place != places[-1]:
                is_it.copy_(self.at_place(maps, place)).eq_(most)  # 1.0 or 0.0
                part = rest * is_it
                rest = rest - part
            self.at_place(back, place).add_(part)
        self.berror = back.flatten(1)


class L2PoolingLayer(PoolingLayer):
    """The Euclidean norm of each field."""

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the norm of each field."""
        squares = self.field_sums(self.as_maps(inputs).square())
        if not torch.is_grad_enabled():
            return squares.sqrt_().flatten(1)
        # The root has no derivative at 0: such fields get none.
        is_zero = squares == 0
        norms = torch.where(is_zero, torch.ones_like(squares), squares).sqrt()
        return torch.where(is_zero, torch.zeros_like(squares), norms).flatten(1)

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`: each input times the sum of error / norm over its fields."""
        if self.is_first:
            return
        maps = self.as_maps(inputs)
        norms = self.field_sums(maps.square()).sqrt_()
        # All inputs of a field of norm 0 are 0, and so are its shares, whatever they are divided
        # by: the least norm there is besides is cheaper than a choice for each field.
        info = torch.finfo(norms.dtype)
        norms.clamp_(min=math.sqrt(info.smallest_normal * info.eps))
        shares = self.as_output_maps(error) / norms
        self.berror = self.spread_over_fields(shares).mul_(maps).flatten(1)


class AveragePoolingLayer(PoolingLayer):
    """The average of each field."""

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the average of each field."""
        return functional.avg_pool2d(self.as_maps(inputs), self.fshape, self.stride).flatten(1)

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`: each input of a field gets an equal share of its error."""
        if self.is_first:
            return
        shares = self.as_output_maps(error) / (self.fheight * self.fwidth)
        self.berror = self.spread_over_fields(shares).flatten(1)


class MaxPoolingLayerDist(ViewLayerDist, MaxPoolingLayer):
    """Max pooling of which each rank makes its part of the output."""


class L2PoolingLayerDist(ViewLayerDist, L2PoolingLayer):
    """L2 pooling of which each rank makes its part of the output."""


class AveragePoolingLayerDist(ViewLayerDist, AveragePoolingLayer):
    """Average pooling of which each rank makes its part of the output."""
