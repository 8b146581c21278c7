"""The input of a partitioned convolution: each worker gets the box its outputs are made of.

    input blocks     | . . . . . | . . . . |          outputs are balanced, whatever the input is
    output blocks    | . . . | . . |
    boxes            [ 0 . . . . . ]                  kernel 3, stride 2, padding 1
                            [ . . . . . ]

The boxes come from one halo exchange (`kadril.ops.halo`), padding included. A convolution without
padding of the box then gives the worker's block of the output, and nothing has to be cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from kadril.nn.conv.padding import check_padding, extend, sources_of
from kadril.nn.conv.window import Window
from kadril.ops import HaloExchanger
from kadril.ops.structure import Structure, shared_plans
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["ConvInput", "check_fits"]

FIRST_SPATIAL = 2


class InputPlan(NamedTuple):
    """What becomes of blocks.

    Attributes:
        sizes: of the global tensor.
        blocks: for each dim, what each position along its axis has.
        needed: the same, for what its outputs are made of; may reach beyond the edges.
        sources: the same, for what that is made of.
        is_local: whether every worker has its sources in its own block.
    """

    sizes: list[int]
    blocks: list[list[Interval]]
    needed: list[list[Interval]]
    sources: list[list[Interval]]
    is_local: bool


class ConvInput:
    """Gives every worker of a partition the input for its block of the output.

    Args:
        P_x: where the input is: an axis for the batch, the channels, and each spatial dim.
        num_channels: of the input.
        windows: for each spatial dim.
        mode: of padding: "zeros", "reflect", "replicate" or "circular".
        what: for errors.

    Attributes:
        torch_padding: for each spatial dim, the zeros that are left for torch's own convolution to
            add: along dims that are not split, it does so without a copy of the input.
        exchanger: the halo exchange.
    """

    def __init__(
        self, P_x: Partition, num_channels: int, windows: Sequence[Window], mode: str, what: str
    ) -> None:
        self.P_x = P_x
        self.num_channels = num_channels
        self.windows = list(windows)
        self.mode = mode
        self.what = what
        self.torch_padding = tuple(
            window.before
            if mode == "zeros" and length == 1 and window.before == window.after
            else 0
            for window, length in zip(windows, P_x.shape[FIRST_SPATIAL:], strict=True)
        )
        # All that plans follow from, so that layers that are alike make them once.
        settings = (P_x.ranks, P_x.shape, P_x.index, num_channels, tuple(windows), mode, what)
        self.exchanger = HaloExchanger(
            P_x,
            [partial(self._sources, dim) for dim in range(P_x.dim)],
            periodic=[dim >= FIRST_SPATIAL and mode == "circular" for dim in range(P_x.dim)],
            what=what,
            plans=shared_plans("exchanges for convolutions", *settings),
        )
        self._plans = shared_plans("inputs of convolutions", *settings)

    def plan(self, structure: Structure) -> InputPlan:
        """What becomes of blocks; the same on all ranks.

        Raises:
            ValueError: the tensor does not fit to the partition or to the layer.
            MismatchError: the blocks do not make up a tensor.
        """
        return self._plans.get(structure, lambda: self._plan(structure))

    def gather(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """The box that this worker's outputs are made of; collective over the partition.

        Args:
            x: its block of the input.
            structure: of the input.

        Raises:
            ValueError, MismatchError: as of `plan`.
        """
        plan = self.plan(structure)
        index = self.P_x.index
        if index is None:
            raise AssertionError("only workers of the partition come here")
        had = at(plan.sources, index)
        if plan.is_local:
            x = cut(x, at(plan.blocks, index), had)
        else:
            x = self.exchanger.exchange(x, structure)
        if self.mode in ("reflect", "replicate"):
            x = extend(x, had, at(plan.needed, index), plan.sizes, self.mode)
        return x

    def _plan(self, structure: Structure) -> InputPlan:
        blocks = structure.blocks(self.what)
        sizes = [have[-1].stop for have in blocks]
        check_fits(self.what, sizes, self.num_channels, self._output_sizes(sizes), self.P_x)
        sources = [self._sources(dim, have) for dim, have in enumerate(blocks)]
        return InputPlan(
            sizes,
            blocks,
            [self._needed(dim, have) for dim, have in enumerate(blocks)],
            sources,
            all(
                have & want == want
                for haves, wants in zip(blocks, sources, strict=True)
                for have, want in zip(haves, wants, strict=True)
            ),
        )

    def _output_sizes(self, sizes: Sequence[int]) -> list[int]:
        found = []
        for dim, window in enumerate(self.windows, FIRST_SPATIAL):
            size = sizes[dim]
            where = f"{self.what}: dim {dim}"
            check_padding(self.mode, window.before, window.after, size, where)
            if window.output_size(size) < 1:
                raise ValueError(
                    f"{where} has {size} elements, {size + window.before + window.after} with"
                    f" padding, and the kernel reaches over {window.reach}"
                )
            found.append(window.output_size(size))
        return found

    def _needed(self, dim: int, blocks: Sequence[Interval]) -> list[Interval]:
        size = blocks[-1].stop
        if dim < FIRST_SPATIAL:
            return balanced_intervals(size, len(blocks))
        window = self.windows[dim - FIRST_SPATIAL]
        if self.torch_padding[dim - FIRST_SPATIAL]:
            return [Interval(0, size)]
        outputs = balanced_intervals(window.output_size(size), len(blocks))
        return [window.inputs_of(each) for each in outputs]

    def _sources(self, dim: int, blocks: Sequence[Interval]) -> list[Interval]:
        size = blocks[-1].stop
        return [sources_of(each, size, self.mode) for each in self._needed(dim, blocks)]


def check_fits(
    what: str,
    sizes: Sequence[int],
    num_channels: int,
    output_sizes: Sequence[int],
    P_x: Partition,
) -> None:
    """Refuse an input that is not for this layer, or too small for its partition.

    Args:
        what: the layer, for errors.
        sizes: of the global input.
        num_channels: that the layer takes.
        output_sizes: of the spatial dims of the output.
        P_x: on whose axes both are spread.

    Raises:
        ValueError: names dim and axis.
    """
    if sizes[1] != num_channels:
        raise ValueError(f"{what}: dim 1 has {sizes[1]} channels in all, not {num_channels}")
    for dim, size in enumerate([sizes[0], num_channels, *output_sizes]):
        length = P_x.shape[dim]
        if size < length and length > 1:
            raise ValueError(
                f"{what}: dim {dim} of the output has {size} elements, too few for the {length}"
                f" workers along axis {dim} of the partition"
            )


def at(intervals: Sequence[Sequence[Interval]], index: Sequence[int]) -> list[Interval]:
    """The box of one worker."""
    return [per_dim[position] for per_dim, position in zip(intervals, index, strict=True)]


def cut(x: torch.Tensor, had: Sequence[Interval], wanted: Sequence[Interval]) -> torch.Tensor:
    """A part of a box."""
    if list(had) == list(wanted):
        return x
    return x[
        tuple(
            slice(want.start - have.start, want.stop - have.start)
            for have, want in zip(had, wanted, strict=True)
        )
    ]
