"""Convolution of a tensor whose channels are split too: every worker has a block of the weight.

    P_x = 1 x in x S          P_w = out x in x S          P_y = 1 x out x S

         x   --halo-->   box   --broadcast-->   conv(box, w)   --sum-reduce-->   y
         (over out)                             (over in)

    y[o] = b[o] + sum_i conv(x[i], w[o, i])            o, i: blocks of channels

    x*[i] = halo*( sum_o conv*(y*[o], w[o, i]) )        the broadcast's adjoint is the sum over out
    w*[o, i] = sum over batch and spatial workers       the sum-reduce's adjoint is a broadcast

Where the batch is split too, P_x and P_y have that axis first, and P_w gets it as a first one of
its own: batch x out x in x S. Worker (o, i) along these axes holds the block w[o, i]; with groups,
whose weight has few columns, the rows w[o, :]. The first column holds the bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.channels import SplitChannels, refuse_spatial
from kadril.nn.conv.groups import convolve_pieces, pieces_of
from kadril.nn.conv.input import ConvInput
from kadril.nn.conv.layer import CONVOLUTIONS, windows_of
from kadril.nn.sharing import refuse_data
from kadril.nn.split_state import SplitWeight
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["ChannelConv", "GeneralConv"]

IN_AXIS = 2


class GeneralConv(SplitChannels):
    """A convolution over blocks of channels, spatial dims and the batch."""

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        if getattr(self, "overlap", None):
            raise ValueError(f"{self.what}: only the feature form, with P_x alone, can overlap")
        workers = self._set_up_partitions(P_x, P_y, P_w)
        self.input = ConvInput(
            P_x, self.in_channels, windows_of(self), self.padding_mode, self.what
        )
        whole = [Interval(0, layer.weight.shape[1])] * len(self.inputs)
        columns = self.inputs if self.groups == 1 else whole
        shape = tuple(layer.weight.shape)
        split = SplitWeight(workers, self.outputs, columns, shape, layer.bias is not None)
        self._split_parameters(layer, split, [] if self.groups == 1 else [IN_AXIS])

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve; collective over the workers of all three partitions.

        Args:
            x: this worker's block of the input on `P_x`; a zero-volume tensor on other ranks.

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
        plan = self.input.plan(structure)
        weight, bias = self._spread_parameters()
        if self.P_x.active:
            x = self.input.gather(x, structure)
        x = self.broadcaster(x)
        if weight is not None:
            sizes = [
                window.output_size(size)
                for window, size in zip(self.input.windows, plan.sizes[2:], strict=True)
            ]
            x = self._convolve(x, weight, bias, sizes)
        return self.reducer(x)

    def _convolve(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sizes: Sequence[int],
    ) -> torch.Tensor:
        """The part of the output that this worker's inputs give."""
        convolution = CONVOLUTIONS[self.num_spatial]
        settings = (self.stride, self.input.torch_padding, self.dilation)
        if self.groups == 1:
            return convolution(x, weight, bias, *settings)
        _, out_position, in_position, *positions = self._place()
        spatial = [
            balanced_intervals(size, length)[position].size
            for size, length, position in zip(
                sizes, self.split.P_w.shape[3:], positions, strict=True
            )
        ]
        pieces = pieces_of(
            self.outputs[out_position],
            self.inputs[in_position],
            self.out_channels,
            self.in_channels,
            self.groups,
        )
        y = convolve_pieces(
            x,
            weight,
            pieces,
            [weight.shape[0], *spatial],
            lambda a, b, n: convolution(a, b, None, *settings, n),
        )
        return y if bias is None else y + bias.view(-1, *[1] * self.num_spatial)


class ChannelConv(GeneralConv):
    """A convolution over blocks of channels, and of the batch."""

    def _check_partitions(self, P_x: Partition, P_y: Partition, P_w: Partition) -> list[int]:
        shape = super()._check_partitions(P_x, P_y, P_w)
        refuse_spatial(self.what, P_x, shape)
        return shape
