"""Partitions: ordered subsets of the ranks, with or without a Cartesian shape."""

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
