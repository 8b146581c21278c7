"""The convolution of one worker: the box its outputs are made of, and what it makes of it.

    input blocks     | . . . . . | . . . . |          outputs are balanced, whatever the input is
    output blocks    | . . . | . . |
    boxes            [ 0 . . . . . ]                  kernel 3, stride 2, padding 1
                            [ . . . . . ]

Boxes include the padding. A convolution of the box without padding then gives the worker's block of
the output, and nothing has to be cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from kadril.nn.conv.channel_groups import Piece, pieces_of
from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.conv.conv_window import FIRST_SPATIAL, ConvWindow
from kadril.nn.reach import plan_reaches
from kadril.nn.split_state import SplitWeight
from kadril.ops.box_plan import BoxPlan
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition

__all__ = ["CONVOLUTIONS", "Convolution", "check_channels"]

IN_AXIS = 2  # of a partition of the weight: batch x out x in x spatial

CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


class Convolution:
    """The arithmetic of a convolution.

    Args:
        settings: of the torch layer.
        P_x: where the input is: an axis for the batch, the channels, and each spatial dim.
        what: name of the layer in errors.

    Attributes:
        windows: for each spatial dim.
        torch_padding: for each spatial dim, the zeros that are left for torch's own convolution to
            add: along dims that are not split, it does so without a copy of the input.
    """

    is_transposed = False

    def __init__(self, settings: ConvSettings, P_x: Partition, what: str) -> None:
        self.settings = settings
        self.what = what
        self.windows = [
            ConvWindow(
                kernel,
                stride,
                dilation,
                before,
                after,
                is_whole=settings.padding_mode == "zeros" and length == 1 and before == after,
            )
            for kernel, stride, dilation, (before, after), length in zip(
                settings.kernel_size,
                settings.stride,
                settings.dilation,
                settings.paddings(),
                P_x.shape[FIRST_SPATIAL:],
                strict=True,
            )
        ]
        self.torch_padding = tuple(
            window.before if window.is_whole else 0 for window in self.windows
        )

    def plan(self, structure: Structure, output_size: Sequence[int] | None = None) -> BoxPlan:
        """Plan which box each worker needs; the same on all workers.

        Raises:
            ValueError: the tensor does not match the partition or the layer.
            MismatchError: the blocks do not make up a tensor.
        """
        mode = self.settings.padding_mode
        sizes = [along[-1].stop for along in structure.blocks(self.what)]
        for dim, window in enumerate(self.windows, FIRST_SPATIAL):
            where = f"{self.what}: dim {dim}"
            check_padding(mode, max(window.before, window.after), sizes[dim], where)
            if window.output_size(sizes[dim]) < 1:
                raise ValueError(
                    f"{where} has {sizes[dim]} elements,"
                    f" {sizes[dim] + window.before + window.after} with padding, and the kernel"
                    f" reaches over {window.reach}"
                )
        check_channels(self.settings, sizes, self.what)
        return plan_reaches(structure, self.windows, self.what, edge=mode)

    def run(
        self,
        box: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        plan: BoxPlan,
        positions: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """Compute y = conv(box, w, b): a worker's block of the output.

        Args:
            box: what it is made of.
            weight: of as many input channels as the box has, in each group.
            bias: of the output channels of the weight.
            plan: that the box was gathered by.
            positions: of the worker along the spatial axes.
            groups: number of groups of channels.
        """
        settings = self.settings
        return CONVOLUTIONS[settings.num_spatial](
            box, weight, bias, settings.stride, self.torch_padding, settings.dilation, groups
        )

    def split_weight(
        self,
        workers: Partition,
        outputs: list[Interval],
        inputs: list[Interval],
        shape: Sequence[int],
    ) -> SplitWeight:
        """Return who holds which block of the parameters, where channels are split.

        Args:
            workers: batch x out x in x spatial.
            outputs: channels at each position along the output axis.
            inputs: channels at each position along the input axis.
            shape: of the whole weight.
        """
        is_grouped = self.settings.groups > 1
        columns = [Interval(0, shape[1])] * len(inputs) if is_grouped else inputs
        return SplitWeight(workers, outputs, columns, tuple(shape), self.settings.has_bias)

    @property
    def copied_axes(self) -> list[int]:
        """Axes of the channels along which all workers have the same block of the weight."""
        return [] if self.settings.groups == 1 else [IN_AXIS]

    def pieces(self, outputs: Interval, inputs: Interval) -> list[Piece]:
        """Return the parts of a grouped convolution between some channels of both sides."""
        settings = self.settings
        return pieces_of(
            outputs, inputs, settings.out_channels, settings.in_channels, settings.groups
        )


def check_channels(settings: ConvSettings, sizes: Sequence[int], what: str) -> None:
    """Refuse an input with other channels than those of the layer.

    Raises:
        ValueError: names both numbers.
    """
    if sizes[1] != settings.in_channels:
        raise ValueError(
            f"{what}: dim 1 has {sizes[1]} channels in all, not {settings.in_channels}"
        )


def check_padding(mode: str, widest: int, size: int, where: str) -> None:
    """Refuse what torch refuses: padding that the dim has no elements for.

    Args:
        mode: "zeros", "reflect", "replicate" or "circular".
        widest: elements to add before the first one, or after the last one.
        size: of the dim.
        where: layer and dim, for the error.

    Raises:
        ValueError: by reflection as much as the dim has elements, or circular with more than that.
    """
    if mode == "reflect" and widest >= size:
        raise ValueError(
            f"{where}: padding of {widest} by reflection needs at least {widest + 1} elements, and"
            f" there are {size}"
        )
    if mode == "circular" and widest > size:
        raise ValueError(
            f"{where}: circular padding of {widest} goes around more than once, there being {size}"
            " elements"
        )
