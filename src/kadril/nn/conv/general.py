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
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from kadril import ops
from kadril.nn.conv.groups import convolve_pieces, pieces_of
from kadril.nn.conv.input import ConvInput
from kadril.nn.conv.layer import CONVOLUTIONS, ConvLayer, check_axes, windows_of
from kadril.nn.sharing import refuse_data
from kadril.nn.split_state import SplitWeight
from kadril.ops.structure import agree
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["ChannelConv", "GeneralConv"]


class GeneralConv(ConvLayer):
    """A convolution over blocks of channels, spatial dims and the batch."""

    P_x: Partition
    P_y: Partition
    P_w: Partition

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        if P_y is None or P_w is None:
            raise ValueError(f"{self.what}: give both P_y, of the output, and P_w, of the weight")
        shape = self._check_partitions(P_x, P_y, P_w)
        self.P_x, self.P_y, self.P_w = P_x, P_y, P_w
        num_batch, num_out, num_in, *spatial = shape
        senders = P_x.create_cartesian_topology_partition([num_batch, 1, num_in, *spatial])
        workers = P_w.create_cartesian_topology_partition(shape)
        receivers = P_y.create_cartesian_topology_partition([num_batch, num_out, 1, *spatial])
        self.everyone = P_x.create_partition_union(P_w).create_partition_union(P_y)
        self.broadcaster = ops.Broadcaster(senders, workers, what=f"input of {self.what}")
        self.reducer = ops.SumReducer(workers, receivers, what=f"output of {self.what}")
        self.input = ConvInput(
            P_x, self.in_channels, windows_of(self), self.padding_mode, self.what
        )
        self._split_parameters(layer, workers)

    def _check_partitions(self, P_x: Partition, P_y: Partition, P_w: Partition) -> list[int]:
        """The shape of P_w, with an axis for the batch."""
        check_axes(self.what, "P_x", P_x, self.num_spatial)
        check_axes(self.what, "P_y", P_y, self.num_spatial)
        num_batch, num_in, *spatial = P_x.shape
        shape = [num_batch, P_y.shape[1], num_in, *spatial]
        if P_y.shape[0] != num_batch or list(P_y.shape[2:]) != spatial:
            raise ValueError(
                f"{self.what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} may differ in"
                " axis 1, the channels, only"
            )
        given = list(P_w.shape)
        if given != shape and (num_batch > 1 or given != shape[1:]):
            wanted = shape if num_batch > 1 else shape[1:]
            raise ValueError(
                f"{self.what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} need P_w ="
                f" {text(wanted)}, output channels before input channels; got {text(given)}"
            )
        for name, size, length in (
            ("in_channels", self.in_channels, num_in),
            ("out_channels", self.out_channels, P_y.shape[1]),
        ):
            if size < length:
                raise ValueError(
                    f"{self.what}: {name}={size} are too few for {length} workers along axis 1"
                )
        return shape

    def _split_parameters(self, layer: _ConvNd, workers: Partition) -> None:
        """Take this worker's blocks of the parameters."""
        num_out, num_in = workers.shape[1:3]
        self.outputs = balanced_intervals(self.out_channels, num_out)
        self.inputs = balanced_intervals(self.in_channels, num_in)
        num_columns = layer.weight.shape[1]
        self.split = SplitWeight(
            workers,
            self.outputs,
            self.inputs if self.groups == 1 else [Interval(0, num_columns)] * num_in,
            tuple(layer.weight.shape),
            layer.bias is not None,
        )
        for name in ("weight", "bias"):
            whole = getattr(layer, name)
            block = None if whole is None else self.split.block(name, whole.detach())
            parameter = None
            if block is not None:
                parameter = torch.nn.Parameter(block.clone(), requires_grad=whole.requires_grad)
            self.register_parameter(name, parameter)
        # Follows the layer to other dtypes and devices where there is no parameter that would.
        self.register_buffer("like", layer.weight.detach().new_empty(0), persistent=False)
        self.like: torch.Tensor
        if workers.active:
            spatial = range(3, workers.dim)
            self._bias_group = workers.axis_group([0, *spatial])
            self._weight_group = (
                self._bias_group if self.groups == 1 else workers.axis_group([0, 2, *spatial])
            )

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

    def _spread_parameters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The parameters, whose gradients are the sums over all workers that have the same."""
        weight = bias = None
        if self.weight is not None:
            weight = ops.spread(self.weight, self._weight_group, what=f"weight of {self.what}")
        if self.bias is not None:
            bias = ops.spread(self.bias, self._bias_group, what=f"bias of {self.what}")
        return weight, bias

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
        index = self.split.P_w.index
        if index is None:
            raise AssertionError("only workers that have a weight come here")
        _, out_position, in_position, *positions = index
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
            x, weight, pieces, spatial, lambda a, b, n: convolution(a, b, None, *settings, n)
        )
        return y if bias is None else y + bias.view(-1, *[1] * self.num_spatial)

    def _where(self) -> str:
        return f"P_x={text(self.P_x.shape)}, P_y={text(self.P_y.shape)}, P_w={text(self.P_w.shape)}"

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save whole parameters; collective over the world."""
        for name in ("weight", "bias") if self.split.has_bias else ("weight",):
            destination[prefix + name] = self.split.collect(name, getattr(self, name), self.like)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this rank's blocks of whole parameters."""
        self.split.slice_state(state_dict, prefix, strict, missing_keys, error_msgs)
        # Which whole parameters are missing was found above, also on ranks that have no block.
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, [], unexpected_keys, error_msgs
        )


class ChannelConv(GeneralConv):
    """A convolution over blocks of channels, and of the batch."""

    def _check_partitions(self, P_x: Partition, P_y: Partition, P_w: Partition) -> list[int]:
        shape = super()._check_partitions(P_x, P_y, P_w)
        if any(length > 1 for length in shape[3:]):
            raise ValueError(
                f"{self.what}: P_x = {text(P_x.shape)} splits spatial dims too; that is the general"
                " form"
            )
        return shape
