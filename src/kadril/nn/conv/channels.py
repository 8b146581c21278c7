"""Layers whose channels are split: every worker has a block of the weight.

    P_x = batch x in x S          P_w = batch x out x in x S          P_y = batch x out x S

         x   --broadcast-->   a part of y, from the inputs at hand   --sum-reduce-->   y
             (over out)                                              (over in)

P_w may leave out the axis of the batch where that is not split. The workers of the three partitions
may be others each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.conv import _ConvNd

from kadril import ops
from kadril.nn.conv.layer import ConvLayer, check_axes
from kadril.nn.split_state import SplitParameters, SplitWeight
from kadril.partition import Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["SplitChannels", "refuse_spatial"]


class SplitChannels(SplitParameters, ConvLayer):
    """Base of the convolutions over blocks of channels, spatial dims and the batch.

    Attributes:
        everyone: all workers of the three partitions.
        broadcaster: brings inputs to those who have a weight for them.
        reducer: adds up the parts of the output.
        split: who holds which block of the parameters.
        outputs: channels at each position along the output axis.
        inputs: channels at each position along the input axis.
    """

    P_x: Partition
    P_y: Partition
    P_w: Partition
    split: SplitWeight

    def _set_up_partitions(
        self, P_x: Partition, P_y: Partition | None, P_w: Partition | None
    ) -> Partition:
        """Check and connect the partitions; that of the weight, with an axis for the batch."""
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
        self.outputs = balanced_intervals(self.out_channels, num_out)
        self.inputs = balanced_intervals(self.in_channels, num_in)
        return workers

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

    def _split_parameters(self, layer: _ConvNd, split: SplitWeight, copies: Sequence[int]) -> None:
        """Take this worker's blocks of the parameters.

        Args:
            layer: the torch layer.
            split: who holds which block.
            copies: axes of the channels along which all workers have the same block of the weight.
        """
        self._keep_blocks(split, layer)
        if not split.has_bias:
            self.register_parameter("bias", None)
        workers = split.P_w
        if workers.active:
            spatial = range(3, workers.dim)
            self._bias_group = workers.axis_group([0, *spatial])
            self._weight_group = (
                workers.axis_group([0, *copies, *spatial]) if copies else self._bias_group
            )

    def _spread_parameters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The parameters, whose gradients are the sums over all workers that have the same."""
        weight = bias = None
        if self.weight is not None:
            weight = ops.spread(self.weight, self._weight_group, what=f"weight of {self.what}")
        if self.bias is not None:
            bias = ops.spread(self.bias, self._bias_group, what=f"bias of {self.what}")
        return weight, bias

    def _place(self) -> tuple[int, ...]:
        """The position of a worker that has a block of the weight: batch, out, in, spatial."""
        if self.split.P_w.index is None:
            raise AssertionError("only workers that have a weight come here")
        return self.split.P_w.index

    def _where(self) -> str:
        return f"P_x={text(self.P_x.shape)}, P_y={text(self.P_y.shape)}, P_w={text(self.P_w.shape)}"


def refuse_spatial(what: str, P_x: Partition, shape: Sequence[int]) -> None:
    """Refuse, for the channel form, a partition that splits spatial dims.

    Raises:
        ValueError: names the partition.
    """
    if any(length > 1 for length in shape[3:]):
        raise ValueError(
            f"{what}: P_x = {text(P_x.shape)} splits spatial dims too; that is the general form"
        )
