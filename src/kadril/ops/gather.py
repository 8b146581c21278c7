"""Gather: blocks on all workers of a partition become the whole tensor on one of them.

    P_x = 2 x 2, root 0

    | 0 1 | 2 3 |           | 0 1 2 3 |  .  |        y = blocks x_r put together, on the root
    |-----|-----|    -->    | 4 5 6 7 |     |        x*_r = y*[block r]
    | 4 5 | 6 7 |           |---------|-----|
                            |    .    |  .  |

Its adjoint is scatter: every element has one place on both sides, so nothing is added. Blocks may
have any sizes.

Moved: every block once, to the root, in one exchange.
"""

from __future__ import annotations

import torch

from kadril.ops.calling import uncompiled
from kadril.ops.repartition import Repartitioner
from kadril.ops.scatter import root_of
from kadril.partition import Partition

__all__ = ["Gatherer", "gather"]


@uncompiled
def gather(
    x: torch.Tensor,
    P_x: Partition,
    root: int = 0,
    *,
    preserve_batch: bool = True,
    what: str = "Gather",
) -> torch.Tensor:
    """Put blocks together on one worker; collective over the partition.

    Args:
        x: the worker's block; without elements on ranks that are not in the partition.
        P_x: one axis for each dim.
        root: the worker that gets the tensor, as a rank of the partition.
        preserve_batch: whether other workers get a zero-volume tensor with the first size of their
            block, or with none.
        what: name of the operation in errors.

    Returns:
        The whole tensor on the root, a zero-volume tensor on all others.

    Raises:
        ValueError: the partition does not match the tensor, or there is no such root; on all
            workers.
        MismatchError: the blocks do not make up a tensor; on all workers.
    """
    return Gatherer(P_x, root, preserve_batch=preserve_batch, what=what)(x)


class Gatherer(Repartitioner):
    """A gather that is done again and again; for arguments and errors see `gather`."""

    def __init__(
        self,
        P_x: Partition,
        root: int = 0,
        *,
        preserve_batch: bool = True,
        what: str = "Gather",
    ) -> None:
        alone = root_of(P_x, root, what)
        super().__init__(P_x, alone, preserve_batch=preserve_batch, what=what)
