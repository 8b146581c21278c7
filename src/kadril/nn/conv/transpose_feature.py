"""Transposed convolution of a tensor whose batch and spatial dims are split over workers.

    kernel 3, stride 2, padding 1                 input i goes into outputs 2 i - 1 ... 2 i + 1

    input blocks       |  0   1  |  2   3  |
    outputs           -1 0 1 2 3 4 5 6 7
    output blocks       | . . . . | . . . |       balanced
    inputs needed      [ 0   1   2 ]              those whose outputs touch the block
                             [ 2   3 ]

    y_r = cut( conv_transpose(box_r, w, b) )      box_r = halo(x)_r; outputs beyond the block are
                                                  cut off
    x*  = halo*( conv(y*_r, w) )                  w* = sum_r (w* of worker r),   b* likewise

Beyond the edge of the input are zeros, which give outputs that no input goes into: those of output
padding, and those between the inputs where the stride is wider than the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.layer import check_axes
from kadril.nn.conv.transpose_layer import TRANSPOSED, ConvTransposeLayer
from kadril.nn.sharing import refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["FeatureConvTranspose"]


class FeatureConvTranspose(ConvTransposeLayer):
    """A transposed convolution over the spatial, and the batch, blocks of `P_x`."""

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
        self._inputs = {}

    @uncompiled
    def forward(self, x: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        """Convolve; collective over the partition.

        Args:
            x: this worker's block of the input; a zero-volume tensor on other ranks.
            output_size: of the spatial dims of the whole output, or of all its dims; instead of
                `output_padding`.

        Returns:
            Its block of the output, which is balanced; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not fit to the partition or to the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if self.P_x.index is None or self.weight is None:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree(self.P_x, x, self.what)
        source = self.input_of(structure, output_size)
        cut = source.cut_at(source.plan(structure), self.P_x.index[2:])
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = spread_together(
            [self.weight, self.bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        box = source.gather(x, structure)
        y = TRANSPOSED[self.num_spatial](
            box, weight, bias, self.stride, cut.padding, cut.extra, self.groups, self.dilation
        )
        return cut.apply(y)

    def _where(self) -> str:
        return f"output_padding={self.output_padding}, P_x={text(self.P_x.shape)}"
