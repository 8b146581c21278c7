"""Partitions: ordered subsets of the ranks, with or without a Cartesian shape.

| file | has |
|---|---|
| `world_grid.py` | `grid(2, 2)`: the ranks of the world on a Cartesian shape, in one call |
| `partition.py` | `Partition`: its workers, its shape, and partitions made of it |
| `blocks.py` | how a dim is divided among workers: pure arithmetic |
| `pairing.py` | which workers of two partitions belong together: pure arithmetic |
| `group.py` | `Group`: ranks that can communicate; partitions of the same ranks share one |
| `metadata.py` | small arrays between workers |
"""

from __future__ import annotations

from kadril.partition.blocks import Interval, balanced_intervals, balanced_sizes, intervals_of
from kadril.partition.group import Group
from kadril.partition.partition import Partition, world_partition
from kadril.partition.world_grid import grid

__all__ = [
    "Group",
    "Interval",
    "Partition",
    "balanced_intervals",
    "balanced_sizes",
    "grid",
    "intervals_of",
    "world_partition",
]
