"""Where two partitions meet: the smallest group, known to both, that has all workers of both.

    world (0 1 2 3 4 5)
      `-- P_base (0 1 2 3)
            |-- P_x (0 1)          P_x and P_y meet in P_base: ranks 4 and 5, which may not even
            `-- P_y (2 3)          build the layer, have no part in it

What is made for two partitions is collective over that group. Each partition knows the ranks of all
it was made from, so that every rank finds the same group without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kadril.partition import Partition

if TYPE_CHECKING:
    from .partition import MPIPartition

__all__ = ["meet"]


def meet(*partitions: MPIPartition) -> list[Partition] | None:
    """The partitions, as parts of the group where they meet; None on ranks that are not in it.

    Raises:
        ValueError: they come from different communicators.
    """
    known = [each for each in partitions if each._core is not None]
    if not known:
        return None
    if any(each._lineage[0].root is not known[0]._lineage[0].root for each in known):
        raise ValueError(f"these partitions come from different communicators: {partitions}")
    wanted = {rank for each in known for rank in each._lineage[-1].ranks}
    places = {
        core.ranks: core for each in known for core in each._lineage if wanted.issubset(core.ranks)
    }
    place = places[min(places, key=lambda ranks: (len(ranks), ranks))]
    if not place.active:
        return None
    found = []
    for each in partitions:
        if each._core is None:
            found.append(Partition(place.group, None, ()))
        else:
            group = each._core.group if each._core.active else None
            found.append(Partition(place.group, group, each._core.ranks, each._core.shape))
    return found
