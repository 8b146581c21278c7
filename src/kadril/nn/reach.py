"""The reach of a layer: which inputs its outputs are made of, along each dim of the global tensor.

    input blocks     | . . . . . | . . . |            outputs are balanced, whatever the input is
    output blocks    | . . . | . . |
    boxes            [ . . . . . . ]                  what a worker's outputs are made of
                           [ . . . . . ]

All of it is arithmetic on the global tensor; every rank does it for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kadril.ops.box_plan import BoxPlan, plan_boxes
from kadril.ops.structure import Structure
from kadril.partition import Interval, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["Reach", "plan_reaches"]


class Reach(Protocol):
    """Relation of outputs to the inputs they are made of, along one dim of the global tensor."""

    def output_size(self, size: int) -> int:
        """Return the number of outputs for so many inputs; less than 1 where there are too few."""

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return what some outputs are made of; may go beyond the edges, into padding."""


class Same:
    """The reach of a dim that a layer leaves alone: batch and channels."""

    def output_size(self, size: int) -> int:
        """Return the same size."""
        return size

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return the outputs themselves."""
        return outputs


def plan_reaches(
    structure: Structure,
    reaches: Sequence[Reach],
    what: str,
    *,
    edge: str = "zeros",
    fill: float = 0.0,
    replicates: Callable[[int, int], bool] | None = None,
) -> BoxPlan:
    """Plan which box each worker needs for its outputs, which are balanced.

    Args:
        structure: of the input.
        reaches: for the last dims; the others stay as they are, but balanced.
        what: name of the layer in errors.
        edge: what is beyond the ends of the dims that have a reach.
        fill: the value of "zeros".
        replicates: from a dim and its output size to whether all workers along its axis have the
            whole output; each of them then gets a balanced block of the input.

    Raises:
        ValueError: the tensor does not match the partition, or is too small for it.
        MismatchError: the blocks do not make up a tensor.
    """
    shape = structure.partition_shape
    blocks = structure.blocks(what)
    first = len(shape) - len(reaches)
    outputs, boxes = [], []
    for dim, (have, length) in enumerate(zip(blocks, shape, strict=True)):
        size = have[-1].stop
        reach = Same() if dim < first else reaches[dim - first]
        output_size = reach.output_size(size)
        if length > 1 and replicates is not None and replicates(dim, output_size):
            check_enough(shape, dim, "input", size, what)
            outputs.append([Interval(0, output_size)] * length)
            boxes.append(balanced_intervals(size, length))
            continue
        if dim >= first or length > 1:
            check_enough(shape, dim, "output", output_size, what)
        outputs.append(balanced_intervals(output_size, length))
        boxes.append([reach.inputs_of(each, size) for each in outputs[-1]])
    edges = ["zeros"] * first + [edge] * len(reaches)
    return plan_boxes(shape, blocks, boxes, edges, fill=fill, outputs=outputs, what=what)


def check_enough(shape: Sequence[int], dim: int, side: str, size: int, what: str) -> None:
    """Refuse a dim with fewer elements than there are workers along its axis.

    Raises:
        ValueError: names dim and axis.
    """
    if size < shape[dim]:
        raise ValueError(
            f"{what}: dim {dim} of the {side} has {size} elements, too few for the"
            f" {shape[dim]} workers along axis {dim} of P_x = {text(shape)}"
        )
