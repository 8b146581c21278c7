"""The channel and general forms of a convolution: every worker has a block of the weight.

    P_x = batch x in x S          P_w = batch x out x in x S          P_y = batch x out x S

       x  --gather-->  box  --broadcast-->  conv(box, w)  --sum-reduce-->  y
                            (over out)                    (over in)

    y[o] = b[o] + sum_i conv(x[i], w[o, i])            o, i: blocks of channels

    x*[i] = gather*( sum_o conv*(y*[o], w[o, i]) )      the broadcast's adjoint is the sum over out
    w*[o, i] = sum over batch and spatial workers       the sum-reduce's adjoint is a broadcast

P_w may leave out the axis of the batch where that is not split. The workers of the three partitions
may differ. Worker (o, i) holds the block w[o, i]; with groups, whose weight has few
columns, the rows w[o, :]. The weight of a transposed convolution is torch's, in x out: worker
(o, i) holds w[i, o]; with groups, w[i, :]. The workers with the first inputs hold the bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril import ops
from kadril.nn.autocast import autocast_dtype, cast
from kadril.nn.conv.channel_groups import convolve_pieces
from kadril.nn.conv.conv_form import ConvForm, Kind, check_axes
from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.weight_dtype import agree_with_parameters
from kadril.ops.box_plan import BoxPlan
from kadril.partition import Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["SplitForm"]


class SplitForm(ConvForm):
    """A convolution over blocks of channels, and of the batch and spatial dims.

    Args:
        kind: ordinary or transposed.
        settings: of the torch layer.
        P_x: where the input is.
        P_y: where the output is.
        P_w: where the weight is.
        weight_shape: of the whole weight.
        splits_space: whether spatial dims may be split: the general form.
        what: name of the layer in errors.

    Raises:
        ValueError: partitions that do not match each other or the layer.

    Attributes:
        everyone: all workers of the three partitions.
        broadcaster: brings inputs to the workers that have a weight for them.
        reducer: adds up the parts of the output.
        split: who holds which block of the parameters.
        outputs: channels at each position along the output axis.
        inputs: channels at each position along the input axis.
    """

    def __init__(
        self,
        kind: type[Kind],
        settings: ConvSettings,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        weight_shape: Sequence[int],
        what: str,
        *,
        splits_space: bool,
    ) -> None:
        if P_y is None or P_w is None:
            raise ValueError(f"{what}: give both P_y, of the output, and P_w, of the weight")
        shape = weight_grid(settings, P_x, P_y, P_w, what, splits_space=splits_space)
        super().__init__(kind, settings, P_x, what)
        self.P_y, self.P_w = P_y, P_w
        num_batch, num_out, num_in, *spatial = shape
        senders = P_x.create_cartesian_topology_partition([num_batch, 1, num_in, *spatial])
        workers = P_w.create_cartesian_topology_partition(shape)
        receivers = P_y.create_cartesian_topology_partition([num_batch, num_out, 1, *spatial])
        self.everyone = P_x.create_partition_union(P_w).create_partition_union(P_y)
        self.broadcaster = ops.Broadcaster(senders, workers, what=f"input of {what}")
        self.reducer = ops.SumReducer(workers, receivers, what=f"output of {what}")
        self.outputs = balanced_intervals(settings.out_channels, num_out)
        self.inputs = balanced_intervals(settings.in_channels, num_in)
        self.split = self.kind.split_weight(workers, self.outputs, self.inputs, weight_shape)
        if workers.active:
            copies = range(3, workers.dim)
            self._bias_group = workers.axis_group([0, *copies])
            self._weight_group = workers.axis_group([0, *self.kind.copied_axes, *copies])

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        output_size: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Convolve; collective over the workers of all three partitions.

        Raises:
            TypeError: the input has another dtype than the parameters; on all workers.
        """
        structure = agree_with_parameters(
            self.everyone, x, weight, bias, self.what, owners=self.P_x
        )
        gather = self.gather_for(output_size)
        plan = gather.plan(structure)
        if weight is not None:
            weight = ops.spread(weight, self._weight_group, what=f"weight of {self.what}")
        if bias is not None:
            bias = ops.spread(bias, self._bias_group, what=f"bias of {self.what}")
        if self.P_x.active:
            x = gather.fetch(x, structure)
        x = self.broadcaster(x)
        if weight is not None:
            x = self._convolve(x, weight, bias, plan)
        return self.reducer(x)

    def _convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plan: BoxPlan
    ) -> torch.Tensor:
        """Compute the part of the output that this worker's inputs give."""
        if self.split.P_w.index is None:
            raise AssertionError("only workers that have a weight come here")
        _, out_position, in_position, *positions = self.split.P_w.index
        if self.settings.groups == 1:
            return self.kind.run(x, weight, bias, plan, positions, 1)
        # Before it is cut into pieces: a worker may have none, and those that fill up with zeros
        # or have a bias must enter the reduction with the same dtype as the others.
        dtype = autocast_dtype(x.device.type)
        x, weight = cast(x, dtype), cast(weight, dtype)
        bias = None if bias is None else cast(bias, dtype)
        outputs = self.outputs[out_position]
        spatial = [
            along[position].size
            for along, position in zip(plan.outputs[2:], positions, strict=True)
        ]
        y = convolve_pieces(
            x,
            weight,
            self.kind.pieces(outputs, self.inputs[in_position]),
            [outputs.size, *spatial],
            lambda a, b, groups: self.kind.run(a, b, None, plan, positions, groups),
            is_transposed=self.kind.is_transposed,
        )
        return y if bias is None else y + bias.view(-1, *[1] * self.settings.num_spatial)

    def __str__(self) -> str:
        """Describe where the layer is."""
        return f"P_x={text(self.P_x.shape)}, P_y={text(self.P_y.shape)}, P_w={text(self.P_w.shape)}"


def weight_grid(
    settings: ConvSettings,
    P_x: Partition,
    P_y: Partition,
    P_w: Partition,
    what: str,
    *,
    splits_space: bool,
) -> list[int]:
    """Return the shape of P_w, with an axis for the batch; for the arguments see `SplitForm`.

    Raises:
        ValueError: partitions that do not match each other or the layer.
    """
    check_axes(what, "P_x", P_x, settings.num_spatial)
    check_axes(what, "P_y", P_y, settings.num_spatial)
    num_batch, num_in, *spatial = P_x.shape
    shape = [num_batch, P_y.shape[1], num_in, *spatial]
    if P_y.shape[0] != num_batch or list(P_y.shape[2:]) != spatial:
        raise ValueError(
            f"{what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} may differ in"
            " axis 1, the channels, only"
        )
    given = list(P_w.shape)
    if given != shape and (num_batch > 1 or given != shape[1:]):
        wanted = shape if num_batch > 1 else shape[1:]
        raise ValueError(
            f"{what}: P_x = {text(P_x.shape)} and P_y = {text(P_y.shape)} need P_w ="
            f" {text(wanted)}, output channels before input channels; got {text(given)}"
        )
    for name, size, length in (
        ("in_channels", settings.in_channels, num_in),
        ("out_channels", settings.out_channels, P_y.shape[1]),
    ):
        if size < length:
            raise ValueError(f"{what}: {name}={size} are too few for {length} workers along axis 1")
    if not splits_space and any(length > 1 for length in spatial):
        raise ValueError(
            f"{what}: P_x = {text(P_x.shape)} splits spatial dims too; that is the general form"
        )
    return shape
