"""The input of a partitioned transposed convolution: each worker gets what goes into its outputs.

The boxes come from one halo exchange (`kadril.ops.halo`), with zeros beyond the edge of the input.
Their transposed convolution covers the worker's block of the output, and a little more on both
sides, which is left out:

    of the box       . . . . . . . . . .
    padding          c c             c c          as much on both sides: torch leaves that out
    cut                  x                        what remains on one side
    block                  . . . . .
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from kadril.nn.conv.input import FIRST_SPATIAL, at, check_fits, cut
from kadril.nn.conv.window import TransposedWindow
from kadril.ops import HaloExchanger
from kadril.ops.structure import PlanCache, Structure
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["ConvTransposeInput", "Cut"]


class TransposePlan(NamedTuple):
    """What becomes of blocks.

    Attributes:
        blocks: for each dim, what each position along its axis has.
        needed: the same, for what goes into its outputs; may reach beyond the edges.
        outputs: the same, for its block of the output; spatial dims only.
        is_local: whether every worker has what it needs in its own block.
    """

    blocks: list[list[Interval]]
    needed: list[list[Interval]]
    outputs: list[list[Interval]]
    is_local: bool


class Cut(NamedTuple):
    """What a worker leaves out of the transposed convolution of its box.

    Attributes:
        padding: for each spatial dim, what torch is to leave out on both sides of the output.
        extra: the same, for what it is to add at the end.
        block: the worker's among what torch then gives; None where that is the block.
    """

    padding: tuple[int, ...]
    extra: tuple[int, ...]
    block: tuple[slice, ...] | None

    def apply(self, y: torch.Tensor) -> torch.Tensor:
        """The block of the worker."""
        return y if self.block is None else y[self.block].contiguous()


class ConvTransposeInput:
    """Gives every worker of a partition the input for its block of the output.

    Args:
        P_x: where the input is: an axis for the batch, the channels, and each spatial dim.
        num_channels: of the input.
        windows: for each spatial dim.
        what: for errors.

    Attributes:
        exchanger: the halo exchange.
    """

    def __init__(
        self, P_x: Partition, num_channels: int, windows: Sequence[TransposedWindow], what: str
    ) -> None:
        self.P_x = P_x
        self.num_channels = num_channels
        self.windows = list(windows)
        self.what = what
        self.exchanger = HaloExchanger(
            P_x, [partial(self._needed, dim) for dim in range(P_x.dim)], what=what
        )
        self._plans = PlanCache()

    def plan(self, structure: Structure) -> TransposePlan:
        """What becomes of blocks; who needs what is the same on all ranks.

        Raises:
            ValueError: the tensor does not fit to the partition or to the layer.
            MismatchError: the blocks do not make up a tensor.
        """
        return self._plans.get(structure, lambda: self._plan(structure))

    def gather(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """The box that goes into this worker's outputs; collective over the partition.

        Args:
            x: its block of the input.
            structure: of the input.
        """
        plan = self.plan(structure)
        if plan.is_local and self.P_x.index is not None:
            return cut(x, at(plan.blocks, self.P_x.index), at(plan.needed, self.P_x.index))
        return self.exchanger.exchange(x, structure)

    def _plan(self, structure: Structure) -> TransposePlan:
        blocks = structure.blocks(self.what)
        sizes = [have[-1].stop for have in blocks]
        output_sizes = self._output_sizes(sizes)
        check_fits(self.what, sizes, self.num_channels, output_sizes, self.P_x)
        needed = [self._needed(dim, have) for dim, have in enumerate(blocks)]
        is_local = all(
            have & want == want
            for haves, wants in zip(blocks, needed, strict=True)
            for have, want in zip(haves, wants, strict=True)
        )
        outputs = [
            balanced_intervals(size, length)
            for size, length in zip(output_sizes, self.P_x.shape[FIRST_SPATIAL:], strict=True)
        ]
        return TransposePlan(blocks, needed, outputs, is_local)

    def _output_sizes(self, sizes: Sequence[int]) -> list[int]:
        found = []
        for dim, window in enumerate(self.windows, FIRST_SPATIAL):
            size = window.output_size(sizes[dim])
            if sizes[dim] < 1 or size < 1:
                raise ValueError(
                    f"{self.what}: dim {dim} has {sizes[dim]} elements, of which nothing is left"
                    f" with padding {window.padding}"
                )
            if window.output_padding >= max(window.stride, window.dilation):
                raise ValueError(
                    f"{self.what}: dim {dim}: output padding {window.output_padding} must be less"
                    f" than stride {window.stride} or dilation {window.dilation}"
                )
            found.append(size)
        return found

    def _needed(self, dim: int, blocks: Sequence[Interval]) -> list[Interval]:
        size = blocks[-1].stop
        if dim < FIRST_SPATIAL or len(blocks) == 1:
            return balanced_intervals(size, len(blocks))
        window = self.windows[dim - FIRST_SPATIAL]
        outputs = balanced_intervals(window.output_size(size), len(blocks))
        return [window.inputs_of(each) for each in outputs]

    def cut_at(self, plan: TransposePlan, positions: Sequence[int]) -> Cut:
        """What a worker leaves out of the transposed convolution of its box.

        Args:
            plan: for the input.
            positions: of the worker along the spatial axes.
        """
        padding, extra = [], []
        slices = [slice(None), slice(None)]
        for window, outputs, needed, position in zip(
            self.windows, plan.outputs, plan.needed[FIRST_SPATIAL:], positions, strict=True
        ):
            if len(outputs) == 1:
                padding.append(window.padding)
                extra.append(window.output_padding)
                slices.append(slice(None))
                continue
            block = outputs[position]
            covered = window.outputs_of(needed[position])
            before, after = block.start - covered.start, covered.stop - block.stop
            padding.append(min(before, after))
            extra.append(0)
            start = before - padding[-1]
            slices.append(slice(start, start + block.size) if before != after else slice(None))
        is_whole = all(each == slice(None) for each in slices)
        return Cut(tuple(padding), tuple(extra), None if is_whole else tuple(slices))
