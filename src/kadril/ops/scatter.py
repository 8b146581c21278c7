"""Scatter: a whole tensor on one worker of a partition becomes blocks on all of them.

    P_x = 2 x 2, root 0

    | 0 1 2 3 |  .  |           | 0 1 | 2 3 |        y_r = x[block r]
    | 4 5 6 7 |     |    -->    |-----|-----|        x* = blocks y*_r put together, on the root
    |---------|-----|           | 4 5 | 6 7 |
    |    .    |  .  |

Its adjoint is gather: every element has one place on both sides, so nothing is added.

Moved: every block once, from the root, in one exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.ops.calling import uncompiled
from kadril.ops.repartition import Repartitioner
from kadril.partition import Partition

__all__ = ["Scatterer", "root_of", "scatter"]


@uncompiled
def scatter(
    x: torch.Tensor,
    P_x: Partition,
    root: int = 0,
    *,
    sizes: Sequence[Sequence[int] | None] | None = None,
    what: str = "Scatter",
) -> torch.Tensor:
    """Cut a tensor of one worker into blocks, one for each; collective over the partition.

    Args:
        x: the whole tensor on the root; without elements on all others.
        P_x: one axis for each dim.
        root: the worker that has it, as a rank of the partition.
        sizes: for each dim, block sizes along its axis; balanced where None.
        what: name of the operation in errors.

    Returns:
        The worker's block; a copy of `x` on ranks that are not in the partition.

    Raises:
        ValueError: the partition does not match the tensor, there is no such root, or another
            worker has elements; on all workers.
    """
    return Scatterer(P_x, root, sizes=sizes, what=what)(x)


class Scatterer(Repartitioner):
    """A scatter that is done again and again; for arguments and errors see `scatter`."""

    def __init__(
        self,
        P_x: Partition,
        root: int = 0,
        *,
        sizes: Sequence[Sequence[int] | None] | None = None,
        what: str = "Scatter",
    ) -> None:
        super().__init__(root_of(P_x, root, what), P_x, sizes=sizes, what=what)


def root_of(P_x: Partition, root: int, what: str) -> Partition:
    """Make a partition of one worker, with as many axes; collective over the partition.

    Raises:
        ValueError: there is no such worker.
    """
    if not 0 <= root < P_x.size:
        raise ValueError(f"{what}: {P_x!r} has no root {root}")
    alone = P_x.create_partition_inclusive([root])
    return alone.create_cartesian_topology_partition([1] * P_x.dim)
