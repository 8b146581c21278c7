"""Convolution of a tensor whose batch and spatial dims are split: every worker has all channels.

    P_x = 1 x 1 x 2 x 2           y = conv(x, w, b)

    +-----+-----+                 every worker:   box_r = halo(x)_r
    |  0  |  1  |                                 y_r   = conv(box_r, w, b)
    +-----+-----+
    |  2  |  3  |                 adjoint:        x*    = halo*(conv*(y*_r, w))
    +-----+-----+                                 w*    = sum_r (w* of worker r),   b* likewise

Every worker holds the parameters of the ordinary layer, and gets their whole gradient.
"""

from __future__ import annotations

import torch
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.input import ConvInput
from kadril.nn.conv.layer import (
    CONVOLUTIONS,
    ConvLayer,
    check_axes,
    windows_of,
)
from kadril.nn.sharing import refuse_data, spread_together
from kadril.ops.structure import agree
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["FeatureConv"]


class FeatureConv(ConvLayer):
    """A convolution over the spatial, and the batch, blocks of `P_x`."""

    P_x: Partition

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        if P_y is not None or P_w is not None:
            raise ValueError(f"{self.what}: the feature form has the input's partition, P_x, only")
        check_axes(self.what, "P_x", P_x, self.num_spatial)
        if P_x.shape[1] != 1:
            raise ValueError(
                f"{self.what}: axis 1 of P_x = {text(P_x.shape)} splits the channels; give P_y and"
                " P_w too, for the channels of the output and for the weight"
            )
        self.P_x = P_x
        self._adopt_parameters(layer)
        self.input = ConvInput(
            P_x, self.in_channels, windows_of(self), self.padding_mode, self.what
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve; collective over the partition.

        Args:
            x: this worker's block of the input; a zero-volume tensor on other ranks.

        Returns:
            Its block of the output, which is balanced; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not fit to the partition or to the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.P_x.active or self.weight is None:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree(self.P_x, x, self.what)
        self.input.plan(structure)
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = spread_together(
            [self.weight, self.bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        box = self.input.gather(x, structure)
        return CONVOLUTIONS[self.num_spatial](
            box, weight, bias, self.stride, self.input.torch_padding, self.dilation, self.groups
        )

    def _where(self) -> str:
        return f"P_x={text(self.P_x.shape)}"
