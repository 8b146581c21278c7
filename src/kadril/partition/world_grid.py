"""A grid: the ranks of the world on a Cartesian shape, in one call.

`grid(1, 1, 2, 2)` in a world of 6 ranks:

    +---+---+
    | 0 | 1 |           ranks 4 and 5 are inactive: they hold the partition, and no cell of it
    +---+---+
    | 2 | 3 |
    +---+---+

Images lie on it by batch, channel, row and column.
"""

from __future__ import annotations

import logging
import math
import operator

from kadril.partition.pairing import text
from kadril.partition.partition import Partition, world_partition

__all__ = ["grid"]

logger = logging.getLogger("kadril")


def grid(*lengths: int) -> Partition:
    """Arrange the ranks of the world on a grid; collective over the world.

    Rank 0 is at position (0, 0, ...), and the last axis runs fastest. A grid of fewer cells than
    the world has ranks takes the first ranks. The others hold the partition too, with
    `active` False; layers and primitives on it take a zero-volume tensor from them.

    Args:
        lengths: workers along each axis; for images, batch, channel, row and column.

    Raises:
        ValueError: the grid has more cells than the world has ranks, an axis of no length, or no
            axis at all.
        TypeError: a length that is not an integer.
        NotInitializedError: `kadril.init()` was not called.
    """
    shape = [as_length(each) for each in lengths]
    everyone = world_partition()
    product = f"{text(shape)} = {math.prod(shape)}" if len(shape) > 1 else text(shape)
    call = f"grid({', '.join(map(str, shape))})"
    if not shape or min(shape) < 1:
        raise ValueError(f"{call}: each axis needs a length of at least 1, such as grid(2, 2)")
    if math.prod(shape) > everyone.size:
        raise ValueError(
            f"{call} needs {product} ranks, and this world has {everyone.size}: start"
            f" {math.prod(shape)} ranks (kadril run -np {math.prod(shape)} ...), or use a smaller"
            " grid"
        )
    if math.prod(shape) < everyone.size and everyone.rank == 0:
        logger.info(
            "%s has %s cells for %d ranks: the last %d are inactive in it",
            call,
            product,
            everyone.size,
            everyone.size - math.prod(shape),
        )
    return everyone.create_cartesian_topology_partition(shape)


def as_length(value: int) -> int:
    """Return a length as a plain integer; raises `TypeError` where it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"a grid takes the length of each axis as an integer, such as grid(1, 1, 2, 2); got"
            f" {type(value).__name__}"
        ) from None
