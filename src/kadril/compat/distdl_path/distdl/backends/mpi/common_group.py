"""The common group of some partitions: the smallest known to all that has the workers of all.

    world (0 1 2 3 4 5)
      `-- P_base (0 1 2 3)
            |-- P_x (0 1)          the common group of P_x and P_y is that of P_base: ranks 4 and
            `-- P_y (2 3)          5, which may not even build the layer, have no part in it

Whatever is made for several partitions is collective over that group. Each partition knows the
ranks of all that it was made from, so every rank finds the same group without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kadril.partition import Partition

if TYPE_CHECKING:
    from .partition import MPIPartition

__all__ = ["in_common_group"]


def in_common_group(*partitions: MPIPartition) -> list[Partition] | None:
    """Return the partitions as parts of their common group; None on ranks that are not in it.

    Raises:
        ValueError: they come from different communicators.
    """
    known = [each for each in partitions if each._core is not None]
    if not known:
        return None
    if any(each._lineage[0].root is not known[0]._lineage[0].root for each in known):
        raise ValueError(f"these partitions come from different communicators: {partitions}")
    wanted = {rank for each in known for rank in each._lineage[-1].ranks}
    candidates = {
        core.ranks: core for each in known for core in each._lineage if wanted.issubset(core.ranks)
    }
    common = candidates[min(candidates, key=lambda ranks: (len(ranks), ranks))]
    if not common.active:
        return None
    found = []
    for each in partitions:
        if each._core is None:
            found.append(Partition(common.group, None, ()))
        else:
            group = each._core.group if each._core.active else None
            found.append(Partition(common.group, group, each._core.ranks, each._core.shape))
    return found
