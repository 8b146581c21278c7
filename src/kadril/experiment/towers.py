"""Towers: the ranks on a grid over the image, and groups of towers over the batch.

groups = 2, grid = 2 x 1                      one image is cut into 2 x 1 parts, one per rank
                                              a batch is cut into 2, one per group
  group 0        group 1
+---------+    +---------+
| rank 0  |    | rank 2  |                    partition: the ranks of my group, 1 x 1 x 2 x 1
+---------+    +---------+                    across: those with my part of the image, 0 and 2
| rank 1  |    | rank 3  |
+---------+    +---------+
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kadril.experiment.errors import GridError
from kadril.partition import Group, Interval, Partition, balanced_intervals
from kadril.partition.pairing import text
from kadril.partition.partition import world_partition
from kadril.world import World

__all__ = ["Towers", "choose_grid", "fitting_grids"]


def fitting_grids(num_ranks: int, smallest: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the grids of so many ranks in which each rank has a part; the squarest first.

    Args:
        num_ranks: of the grid.
        smallest: along each dim, the least size of any image or output of a layer.
    """
    if len(smallest) == 1:
        return [(num_ranks,)] if num_ranks <= smallest[0] else []
    found = [
        (length, *rest)
        for length in range(1, min(num_ranks, smallest[0]) + 1)
        if num_ranks % length == 0
        for rest in fitting_grids(num_ranks // length, smallest[1:])
    ]
    # Of two that are as square, the one with more rows: its halos lie together in memory.
    return sorted(found, key=lambda grid: (max(grid) / min(grid), -grid[0]))


def choose_grid(
    num_ranks: int, smallest: Sequence[int], what: str, grid: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the grid to use: the one that was asked for, or the squarest that fits.

    Raises:
        GridError: none fits, or not the one that was asked for; names those that do.
    """
    fitting = fitting_grids(num_ranks, smallest)
    if grid is None and fitting:
        return fitting[0]
    if grid is not None and tuple(grid) in fitting:
        return tuple(grid)
    asked = (
        f"{num_ranks} ranks" if grid is None else f"a grid of {text(grid)} for {num_ranks} ranks"
    )
    known = [text(each) for each in fitting]
    fewer = [count for count in range(1, math.prod(smallest) + 1) if fitting_grids(count, smallest)]
    hint = (
        f"grids that do: {', '.join(known)}"
        if known
        else f"numbers of ranks that do: {', '.join(map(str, fewer[:24]))}"
    )
    raise GridError(
        f"{what}: {asked} cannot each have a part, since the smallest layer has"
        f" {text(smallest)} outputs; {hint}"
    )


class Towers:
    """The ranks of an experiment. Making one is collective over the world.

    Args:
        grid: ranks along rows and columns of the image, or along more dims.
        groups: how many grids there are; each takes its part of every batch.
        world: whose ranks; that of `kadril.init()` where None.

    Attributes:
        grid: see above.
        groups: see above.
        partition: the ranks of this one's group: 1 x 1 x grid, for batch, channels and the image.
        everyone: all ranks.
        across: the ranks that have the same part of the image in all groups.
        group_index: which group this rank is in.
        rank, size: within the group.

    Raises:
        GridError: grid times groups is not the number of ranks.
    """

    def __init__(
        self, grid: Sequence[int] = (1, 1), groups: int = 1, world: World | None = None
    ) -> None:
        ranks = world_partition(world)
        self.grid = tuple(int(length) for length in grid)
        self.groups = groups
        if math.prod(self.grid) * groups != ranks.size:
            raise GridError(
                f"{groups} group(s) of towers of {text(self.grid)} ranks are"
                f" {math.prod(self.grid) * groups} ranks, and this world has {ranks.size}"
            )
        everyone = ranks.create_cartesian_topology_partition([groups, 1, *self.grid])
        if everyone.index is None:
            raise AssertionError("every rank of the world is in its grid")
        dims = range(everyone.dim)
        mine = everyone.create_cartesian_subtopology_partition([dim > 0 for dim in dims])
        self.partition: Partition = mine.create_cartesian_topology_partition([1, 1, *self.grid])
        self.everyone: Group = everyone.group
        self.across: Group = everyone.axis_group([0])
        self.group_index: int = everyone.index[0]

    @property
    def rank(self) -> int:
        """This rank's place in its group."""
        return self.partition.rank

    @property
    def size(self) -> int:
        """Number of ranks in a group."""
        return self.partition.size

    @property
    def position(self) -> tuple[int, ...]:
        """This rank's place along each axis of the grid."""
        if self.partition.index is None:
            raise AssertionError("every rank is in a group")
        return self.partition.index[2:]

    @property
    def others_with_my_part(self) -> Group | None:
        """The group `across`; None where there is only one group of towers."""
        return self.across if self.groups > 1 else None

    def part_of(self, shape: Sequence[int]) -> list[Interval]:
        """Return this rank's part of an image, along each dim."""
        along = zip(shape, self.grid, self.position, strict=True)
        return [balanced_intervals(size, length)[index] for size, length, index in along]

    def rows_of(self, batch_size: int) -> slice:
        """Return this group's part of a batch."""
        rows = balanced_intervals(batch_size, self.groups)[self.group_index]
        return slice(rows.start, rows.stop)

    def __repr__(self) -> str:
        return f"Towers(grid {text(self.grid)}, {self.groups} group(s), rank {self.rank})"
