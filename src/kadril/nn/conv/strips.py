"""Strips: the outputs at the border of a block, and the inputs from other workers they are made of.

    kernel 3, stride 1, padding 1; two workers, seen from the first

    input      0 [. . . . . .| 6 ]            0: the zeros beyond the edge
    outputs      [. . . . . s]                s: the strip; only this output needs input 6

A convolution of the block alone, padded with zeros, gives all outputs but those of the strips. So
the block is neither copied nor kept a second time for the backward pass, and can be convolved while
the rest is on its way. The strips of a dim do not have the outputs of those before it:

    +---+-----------+---+
    |   dim 2, before   |
    +---+-----------+---+
    | d |           | d |                     d: dim 3, before and after
    | i |           | i |
    +---+-----------+---+
    |   dim 2, after    |
    +---+-----------+---+

All of it is arithmetic on the global tensor; every rank does it for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kadril.nn.conv.conv_window import FIRST_SPATIAL, ConvWindow
from kadril.ops.box_plan import Blocks, plan_boxes
from kadril.ops.moves.move_plan import Moves, Slices
from kadril.ops.moves.packing import peer_boxes
from kadril.partition import Interval, Partition, balanced_intervals

__all__ = ["Strip", "StripPlan", "plan_strips"]


class Strip(NamedTuple):
    """Some outputs at the border of this worker's block.

    Attributes:
        outputs: their place among the worker's outputs.
        shape: of the inputs that they are made of, padding included.
        sends: boxes of this worker's block, and who needs them for the same strip of theirs.
        recvs: boxes of the inputs, and who has them.
        own: boxes (of the block, of the inputs) that the worker has itself.
        wrapped: likewise, where a dim continues at its other end, which is the worker's own too.
        edges: boxes of the inputs that are zeros.
    """

    outputs: Slices
    shape: tuple[int, ...]
    sends: tuple[tuple[int, Slices], ...]
    recvs: tuple[tuple[int, Slices], ...]
    own: tuple[tuple[Slices, Slices], ...]
    wrapped: tuple[tuple[Slices, Slices], ...]
    edges: tuple[Slices, ...]

    @property
    def is_empty(self) -> bool:
        """Whether this worker has no such outputs; others may need something for theirs."""
        return 0 in self.shape


class StripPlan(NamedTuple):
    """Plan by which a worker convolves its block and its strips.

    Attributes:
        padding: for each spatial dim, the zeros that torch is to add around the block.
        strips: in an order that is the same on all ranks.
    """

    padding: tuple[int, ...]
    strips: tuple[Strip, ...]


class OutputRegions(NamedTuple):
    """The outputs of one position along an axis, as they lie in the whole output.

    Attributes:
        whole: all outputs.
        before: those that need inputs before the block.
        middle: those that need the block only, or zeros.
        after: those that need inputs after the block.
    """

    whole: Interval
    before: Interval
    middle: Interval
    after: Interval


def plan_strips(
    P_x: Partition, blocks: Blocks, windows: Sequence[ConvWindow], mode: str
) -> StripPlan | None:
    """Plan how this worker convolves its block and its strips.

    Args:
        P_x: where the input is.
        blocks: for each dim, what each position along its axis has.
        windows: for each spatial dim.
        mode: of padding: "zeros" or "circular".

    Returns:
        None, on all ranks, where some worker's block does not give its outputs this way: the batch
        is cut unevenly, or zeros on both sides of a block, as torch adds them, would give other
        outputs than the worker's.
    """
    batch = blocks[0]
    if P_x.index is None or list(batch) != balanced_intervals(batch[-1].stop, len(batch)):
        return None
    regions: list[list[OutputRegions]] = []
    padding = []
    for dim, window in enumerate(windows, FIRST_SPATIAL):
        along = []
        for block, outputs in zip(
            blocks[dim],
            balanced_intervals(window.output_size(blocks[dim][-1].stop), len(blocks[dim])),
            strict=True,
        ):
            before = block.start - window.span(outputs).start
            padded = window._replace(before=before, after=before)
            if before < 0 or padded.output_size(block.size) != outputs.size:
                return None
            along.append(regions_of(block, outputs, blocks[dim][-1].stop, window, mode))
        regions.append(along)
        mine = P_x.index[dim]
        padding.append(blocks[dim][mine].start - window.span(along[mine].whole).start)
    strips = []
    for dim, along in enumerate(regions):
        for side in ("before", "after"):
            if any(getattr(each, side).size for each in along):
                chosen = [
                    [
                        getattr(each, side)
                        if other == dim
                        else each.middle
                        if other < dim
                        else each.whole
                        for each in regions[other]
                    ]
                    for other in range(len(regions))
                ]
                strips.append(plan_strip(P_x, blocks, windows, mode, regions, chosen))
    return StripPlan(tuple(padding), tuple(strips))


def regions_of(
    block: Interval, outputs: Interval, size: int, window: ConvWindow, mode: str
) -> OutputRegions:
    """Find which outputs of one position need inputs of others."""
    needed = window.span(outputs)
    wraps = mode == "circular"
    first = last = 0
    if wraps or block.start > 0:
        first = min(-(-max(0, block.start - needed.start) // window.stride), outputs.size)
    if wraps or block.stop < size:
        # Output j ends at needed.start + stride * j + reach.
        inside = (block.stop - window.reach - needed.start) // window.stride + 1
        last = outputs.size - min(max(inside, first), outputs.size)
    middle = Interval(outputs.start + first, outputs.stop - last)
    return OutputRegions(
        outputs,
        Interval(outputs.start, middle.start),
        middle,
        Interval(middle.stop, outputs.stop),
    )


def plan_strip(
    P_x: Partition,
    blocks: Blocks,
    windows: Sequence[ConvWindow],
    mode: str,
    regions: Sequence[Sequence[OutputRegions]],
    chosen: Blocks,
) -> Strip:
    """Plan one strip of this worker, and what others need for theirs.

    Args:
        P_x: see `plan_strips`.
        blocks: see `plan_strips`.
        windows: see `plan_strips`.
        mode: see `plan_strips`.
        regions: for each spatial dim, those of each position along its axis.
        chosen: likewise, the outputs of the strip.
    """
    index = P_x.index
    if index is None:
        raise AssertionError("only workers of the partition come here")
    needed: list[list[Interval]] = [list(blocks[0]), list(blocks[1])]
    for window, along in zip(windows, chosen, strict=True):
        needed.append([window.span(each) if each.size else Interval(0, 0) for each in along])
    edges = ["zeros"] * FIRST_SPATIAL + [mode] * len(windows)
    moves = plan_boxes(P_x.shape, blocks, needed, edges, what="strips").worker(index).moves
    mine = [
        (each[place].whole, picked[place])
        for each, picked, place in zip(regions, chosen, index[FIRST_SPATIAL:], strict=True)
    ]
    outputs = (
        slice(None),
        slice(None),
        *(slice(o.start - whole.start, o.stop - whole.start) for whole, o in mine),
    )
    shifts = [
        wants[place].start - haves[place].start
        for wants, haves, place in zip(needed, blocks, index, strict=True)
    ]
    return strip_of(moves, outputs, shifts)


def strip_of(moves: Moves, outputs: Slices, shifts: Sequence[int]) -> Strip:
    """Make a strip of its moves.

    Args:
        moves: that gather its inputs.
        outputs: among the worker's outputs.
        shifts: from the beginning of the block to that of the inputs, for each dim.
    """
    own: list[tuple[Slices, Slices]] = []
    wrapped: list[tuple[Slices, Slices]] = []
    for source, target in moves.copies:
        is_own = all(
            one.start - other.start == shift
            for one, other, shift in zip(source, target, shifts, strict=True)
        )
        (own if is_own else wrapped).append((source, target))
    return Strip(
        outputs,
        moves.out_shape or (0,),
        tuple(peer_boxes(moves.sends)),
        tuple(peer_boxes(moves.recvs)),
        tuple(own),
        tuple(wrapped),
        moves.edges,
    )
