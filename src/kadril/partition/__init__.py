"""Partitions: ordered subsets of the ranks, with or without a Cartesian shape."""

from __future__ import annotations

from kadril.partition.blocks import Interval, balanced_intervals, balanced_sizes, intervals_of
from kadril.partition.group import Group
from kadril.partition.partition import Partition, world_partition

__all__ = [
    "Group",
    "Interval",
    "Partition",
    "balanced_intervals",
    "balanced_sizes",
    "intervals_of",
    "world_partition",
]
