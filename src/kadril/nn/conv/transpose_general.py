"""Transposed convolution of a tensor whose channels are split too.

    P_x = 1 x in x S          P_w = out x in x S          P_y = 1 x out x S

         x   --halo-->   box   --broadcast-->   cut( conv_transpose(box, w) )   --sum-reduce-->   y
                         (over out)                                             (over in)

    y[o] = b[o] + sum_i conv_transpose(x[i], w[i, o])      o, i: blocks of channels

    x*[i] = halo*( sum_o conv(y*[o], w[i, o]) )            the broadcast's adjoint is a sum
    w*[i, o] = sum over batch and spatial workers          the sum-reduce's adjoint is a broadcast

Partitions are those of the convolution (`general.py`), output channels before input channels. The
weight is torch's, in x out: worker (o, i) holds the block w[i, o]; with groups, whose weight has
few columns, the rows w[i, :]. The workers with the first inputs hold the bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.channels import SplitChannels, refuse_spatial
from kadril.nn.conv.groups import convolve_pieces, transposed_pieces_of
from kadril.nn.conv.transpose_input import Cut
from kadril.nn.conv.transpose_layer import TRANSPOSED, ConvTransposeLayer
from kadril.nn.sharing import refuse_data
from kadril.nn.split_state import SplitWeight
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Partition

__all__ = ["ChannelConvTranspose", "GeneralConvTranspose", "TransposedSplitWeight"]

OUT_AXIS = 1


class TransposedSplitWeight(SplitWeight):
    """Who holds which block, where inputs are the rows of the weight, and outputs its columns.

    `rows` are output channels at each position along the output axis, `columns` input channels at
    each position along the input axis: those of the axes, as in the base.
    """

    def full_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a whole parameter."""
        return self.shape if name == "weight" else (self.rows[-1].stop,)

    def _slices(self, name: str, row: int, column: int) -> tuple[slice, ...]:
        outputs, inputs = self.rows[row], self.columns[column]
        if name == "bias":
            return (slice(outputs.start, outputs.stop),)
        is_grouped = self.shape[1] < self.rows[-1].stop
        return (
            slice(inputs.start, inputs.stop),
            slice(None) if is_grouped else slice(outputs.start, outputs.stop),
        )


class GeneralConvTranspose(SplitChannels, ConvTransposeLayer):
    """A transposed convolution over blocks of channels, spatial dims and the batch."""

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        workers = self._set_up_partitions(P_x, P_y, P_w)
        self._inputs = {}
        shape = tuple(layer.weight.shape)
        has_bias = layer.bias is not None
        split = TransposedSplitWeight(workers, self.outputs, self.inputs, shape, has_bias)
        self._split_parameters(layer, split, [] if self.groups == 1 else [OUT_AXIS])

    @uncompiled
    def forward(self, x: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        """Convolve; collective over the workers of all three partitions.

        Args:
            x: this worker's block of the input on `P_x`; a zero-volume tensor on other ranks.
            output_size: of the spatial dims of the whole output, or of all its dims; instead of
                `output_padding`.

        Returns:
            Its block of the output on `P_y`, which is balanced; a zero-volume tensor on other
            ranks.

        Raises:
            ValueError: the input does not fit to the partitions or to the layer; on all workers,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.everyone.active:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree(self.everyone, x, self.what, owners=self.P_x)
        source = self.input_of(structure, output_size)
        plan = source.plan(structure)
        weight, bias = self._spread_parameters()
        if self.P_x.active:
            x = source.gather(x, structure)
        x = self.broadcaster(x)
        if weight is not None:
            positions = self._place()[3:]
            spatial = [
                each[place].size for each, place in zip(plan.outputs, positions, strict=True)
            ]
            x = self._convolve(x, weight, bias, source.cut_at(plan, positions), spatial)
        return self.reducer(x)

    def _convolve(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        cut: Cut,
        spatial: Sequence[int],
    ) -> torch.Tensor:
        """The part of the output that this worker's inputs give."""

        def convolve(
            x: torch.Tensor, weight: torch.Tensor, groups: int, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return cut.apply(
                TRANSPOSED[self.num_spatial](
                    x, weight, bias, self.stride, cut.padding, cut.extra, groups, self.dilation
                )
            )

        if self.groups == 1:
            return convolve(x, weight, 1, bias)
        _, out_position, in_position, *_ = self._place()
        outputs = self.outputs[out_position]
        pieces = transposed_pieces_of(
            outputs, self.inputs[in_position], self.out_channels, self.in_channels, self.groups
        )
        y = convolve_pieces(
            x, weight, pieces, [outputs.size, *spatial], convolve, is_transposed=True
        )
        return y if bias is None else y + bias.view(-1, *[1] * self.num_spatial)

    def _where(self) -> str:
        return f"output_padding={self.output_padding}, {super()._where()}"


class ChannelConvTranspose(GeneralConvTranspose):
    """A transposed convolution over blocks of channels, and of the batch."""

    def _check_partitions(self, P_x: Partition, P_y: Partition, P_w: Partition) -> list[int]:
        shape = super()._check_partitions(P_x, P_y, P_w)
        refuse_spatial(self.what, P_x, shape)
        return shape
