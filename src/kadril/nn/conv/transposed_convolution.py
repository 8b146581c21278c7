"""The transposed convolution of one worker: the box that goes into its outputs, and what it gives.

    kernel 3, stride 2, padding 1                 input i goes into outputs 2 i - 1 ... 2 i + 1

    input blocks       |  0   1  |  2   3  |
    outputs           -1 0 1 2 3 4 5 6 7
    output blocks       | . . . . | . . . |       balanced
    inputs needed      [ 0   1   2 ]              those whose outputs touch the block
                             [ 2   3 ]

Beyond the edge of the input are zeros, which give outputs that no input goes into: those of output
padding, and those between the inputs where the stride is wider than the kernel. The transposed
convolution of a box covers the worker's block of the output, and a little more on both sides, which
is left out:

    of the box       . . . . . . . . . .
    padding          c c             c c          as much on both sides: torch leaves that out
    cut                  x                        what remains on one side
    block                  . . . . .
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from kadril.nn.conv.channel_groups import Piece, transposed_pieces_of
from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.conv.conv_window import FIRST_SPATIAL, TransposedWindow
from kadril.nn.conv.convolution import check_channels
from kadril.nn.reach import plan_reaches
from kadril.nn.split_state import SplitWeight
from kadril.ops.box_plan import BoxPlan
from kadril.ops.structure import Structure
from kadril.partition import Interval, Partition

__all__ = ["TRANSPOSED", "TransposedConvolution"]

OUT_AXIS = 1  # of a partition of the weight: batch x out x in x spatial

TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


class Cut(NamedTuple):
    """Cut of a worker's block out of the transposed convolution of its box.

    Attributes:
        padding: for each spatial dim, what torch is to leave out on both sides of the output.
        extra: the same, for what it is to add at the end.
        block: the worker's among what torch then gives; None where that is the block.
    """

    padding: tuple[int, ...]
    extra: tuple[int, ...]
    block: tuple[slice, ...] | None

    def apply(self, y: torch.Tensor) -> torch.Tensor:
        """Cut out the block of the worker."""
        return y if self.block is None else y[self.block].contiguous()


class TransposedConvolution:
    """The arithmetic of a transposed convolution.

    Args:
        settings: of the torch layer.
        P_x: where the input is: an axis for the batch, the channels, and each spatial dim.
        what: name of the layer in errors.
    """

    is_transposed = True

    def __init__(self, settings: ConvSettings, P_x: Partition, what: str) -> None:
        self.settings = settings
        self.lengths = P_x.shape[FIRST_SPATIAL:]
        self.what = what

    def windows(self, output_padding: Sequence[int]) -> list[TransposedWindow]:
        """Return the window along each spatial dim."""
        settings = self.settings
        return [
            TransposedWindow(kernel, stride, dilation, padding, extra, is_whole=length == 1)
            for kernel, stride, dilation, (padding, _), extra, length in zip(
                settings.kernel_size,
                settings.stride,
                settings.dilation,
                settings.paddings(),
                output_padding,
                self.lengths,
                strict=True,
            )
        ]

    def plan(self, structure: Structure, output_size: Sequence[int] | None = None) -> BoxPlan:
        """Plan which box each worker needs; the same on all workers.

        Args:
            structure: of the input.
            output_size: of the spatial dims of the whole output, or of all its dims; instead of the
                output padding.

        Raises:
            ValueError: the tensor does not match the partition or the layer, or there is no output
                of such a size.
            MismatchError: the blocks do not make up a tensor.
        """
        sizes = [along[-1].stop for along in structure.blocks(self.what)]
        extra: Sequence[int] = self.settings.output_padding
        if output_size is not None:
            extra = self._extra_for(output_size, sizes)
        windows = self.windows(extra)
        for dim, window in enumerate(windows, FIRST_SPATIAL):
            if sizes[dim] < 1 or window.output_size(sizes[dim]) < 1:
                raise ValueError(
                    f"{self.what}: dim {dim} has {sizes[dim]} elements, of which nothing is left"
                    f" with padding {window.padding}"
                )
            if window.output_padding >= max(window.stride, window.dilation):
                raise ValueError(
                    f"{self.what}: dim {dim}: output padding {window.output_padding} must be less"
                    f" than stride {window.stride} or dilation {window.dilation}"
                )
        check_channels(self.settings, sizes, self.what)
        return plan_reaches(structure, windows, self.what)

    def run(
        self,
        box: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        plan: BoxPlan,
        positions: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """Compute y = cut(conv_transpose(box, w, b)): a worker's block of the output.

        For the arguments see `Convolution.run`.
        """
        settings = self.settings
        cut = self.cut_at(plan, positions)
        y = TRANSPOSED[settings.num_spatial](
            box, weight, bias, settings.stride, cut.padding, cut.extra, groups, settings.dilation
        )
        return cut.apply(y)

    def split_weight(
        self,
        workers: Partition,
        outputs: list[Interval],
        inputs: list[Interval],
        shape: Sequence[int],
    ) -> SplitWeight:
        """Return who holds which block of the parameters; see `Convolution.split_weight`."""
        has_bias = self.settings.has_bias
        return TransposedSplitWeight(workers, outputs, inputs, tuple(shape), has_bias)

    @property
    def copied_axes(self) -> list[int]:
        """Axes of the channels along which all workers have the same block of the weight."""
        return [] if self.settings.groups == 1 else [OUT_AXIS]

    def pieces(self, outputs: Interval, inputs: Interval) -> list[Piece]:
        """Return the parts of a grouped convolution between some channels of both sides."""
        settings = self.settings
        return transposed_pieces_of(
            outputs, inputs, settings.out_channels, settings.in_channels, settings.groups
        )

    def cut_at(self, plan: BoxPlan, positions: Sequence[int]) -> Cut:
        """Find what a worker leaves out of the transposed convolution of its box.

        Args:
            plan: that the box was gathered by.
            positions: of the worker along the spatial axes.
        """
        padding, extra = [], []
        slices = [slice(None), slice(None)]
        windows = self.windows([0] * self.settings.num_spatial)
        for dim, (window, position) in enumerate(
            zip(windows, positions, strict=True), FIRST_SPATIAL
        ):
            if window.is_whole:
                padding.append(window.padding)
                extra.append(plan.output_sizes[dim] - window.covered_size(plan.sizes[dim]))
                slices.append(slice(None))
                continue
            block = plan.outputs[dim][position]
            covered = window.outputs_of(plan.boxes[dim][position])
            before, after = block.start - covered.start, covered.stop - block.stop
            padding.append(min(before, after))
            extra.append(0)
            start = before - padding[-1]
            slices.append(slice(start, start + block.size) if before != after else slice(None))
        is_whole = all(each == slice(None) for each in slices)
        return Cut(tuple(padding), tuple(extra), None if is_whole else tuple(slices))

    def _extra_for(self, output_size: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return the output padding that gives a size."""
        wanted = [int(size) for size in output_size]
        num_spatial = self.settings.num_spatial
        if len(wanted) == num_spatial + FIRST_SPATIAL:
            wanted = wanted[FIRST_SPATIAL:]
        if len(wanted) != num_spatial:
            raise ValueError(
                f"{self.what}: output_size must have {num_spatial} or {num_spatial + 2} numbers,"
                f" got {list(output_size)}"
            )
        extra = []
        windows = self.windows([0] * num_spatial)
        for dim, (size, window) in enumerate(zip(wanted, windows, strict=True), FIRST_SPATIAL):
            least = window.output_size(sizes[dim])
            if not least <= size < least + window.stride:
                raise ValueError(
                    f"{self.what}: dim {dim} of the output can have {least} to"
                    f" {least + window.stride - 1} elements, not {size}"
                )
            extra.append(size - least)
        return extra


class TransposedSplitWeight(SplitWeight):
    """Blocks of a weight whose rows are inputs and whose columns are outputs.

    `rows` are output channels at each position along the output axis, `columns` input channels at
    each position along the input axis: those of the axes, as in the base.
    """

    def full_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter."""
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
