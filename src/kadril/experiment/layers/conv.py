"""Convolutions, without bias and activation.

y = x * w          x* = y* *^T w          w* = sum over examples, positions and ranks of y* x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from kadril import ops
from kadril.experiment.backend import Backend, WeightInit
from kadril.experiment.layers.layer import REQUIRED, Rate, WeightLayer
from kadril.experiment.layers.local_layer import LocalLayer, ViewLayerDist
from kadril.partition import Group

__all__ = ["ConvLayer", "ConvLayerDist"]


class ConvLayer(LocalLayer, WeightLayer):
    """A convolution: `nofm` filters that are the same at all positions.

    Args:
        name, backend, batch_size, pos, learning_rate, weight_init: see `WeightLayer`.
        nifm: channels of the input.
        nofm: number of filters.
        ifmshape: rows and columns of the input.
        fshape: rows and columns of a filter.
        stride: from one position to the next.

    Attributes:
        weights: inputs of a filter by filters; the whole matrix on every rank.
    """

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        batch_size: int | None = None,
        pos: int | None = None,
        learning_rate: Rate | None = None,
        nifm: int = REQUIRED,
        nofm: int = REQUIRED,
        ifmshape: Sequence[int] = REQUIRED,
        fshape: Sequence[int] = REQUIRED,
        stride: int = 1,
        weight_init: WeightInit | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, backend, batch_size, pos, learning_rate, weight_init)
        self.set_sizes(nifm, nofm, ifmshape, fshape, stride)
        self.draw((self.fsize, nofm))

    def filters(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights as torch wants them."""
        return weights.t().reshape(self.nofm, self.nifm, *self.fshape)

    def compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the convolution of inputs with all filters."""
        maps = self.as_maps(inputs)
        return functional.conv2d(maps, self.filters(self.shared()), stride=self.stride).flatten(1)

    def bprop(
        self, error: torch.Tensor, inputs: torch.Tensor, epoch: int = 0, momentum: Any = None
    ) -> None:
        """Make `berror`, and update the filters; see `BaseLayer.bprop`."""
        with torch.no_grad():
            filters = self.filters(self.matrix)
            back, updates, _ = torch.ops.aten.convolution_backward(
                self.as_output_maps(error).contiguous(),
                self.as_maps(inputs).contiguous(),
                filters,
                None,
                [self.stride] * 2,
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
                [not self.is_first, True, False],
            )
            if not self.is_first:
                self.berror = back.flatten(1)
            self.learn(updates.reshape(self.nofm, self.fsize).t().contiguous(), epoch, momentum)


class ConvLayerDist(ViewLayerDist, ConvLayer):
    """A convolution of which each rank makes its part of the output; all have all filters."""

    def shared(self) -> torch.Tensor:
        """Return the filters; their gradients are summed over all ranks."""
        if self.towers is None:
            return self.matrix
        return ops.spread(self.matrix, self.towers.everyone, what=f"filters of {self.name}")

    @property
    def sharers(self) -> Group | None:
        """All ranks: the filters stay the same on each."""
        return None if self.towers is None else self.towers.everyone
