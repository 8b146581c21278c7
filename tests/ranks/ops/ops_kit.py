"""What the tests of primitives share: partitions, global tensors, their blocks, drawn cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from kadril import ops
from kadril.partition import Partition, balanced_intervals, intervals_of, world_partition
from kadril.testing import integer_valued
from kadril.world import World

__all__ = ["TRANSPORTS", "arranged", "block", "drawn", "nothing", "whole"]

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]

Case = TypeVar("Case")


def arranged(world: World, shape: Sequence[int]) -> Partition:
    """The first ranks of a world, with a shape."""
    return world_partition(world).create_cartesian_topology_partition(shape)


def whole(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A global tensor that every rank can make for itself."""
    return integer_valued(shape, dtype, seed=3)


def nothing(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What a rank holds that holds nothing."""
    return ops.zero_volume_tensor(dtype=dtype)


def block(
    x: torch.Tensor, P: Partition, sizes: Sequence[Sequence[int] | None] | None = None
) -> torch.Tensor:
    """The part of a global tensor that this rank holds."""
    if P.index is None:
        return x.new_empty(0)
    slices = []
    for dim, position in enumerate(P.index):
        given = None if sizes is None else sizes[dim]
        blocks = (
            balanced_intervals(x.shape[dim], P.shape[dim]) if given is None else intervals_of(given)
        )
        slices.append(slice(blocks[position].start, blocks[position].stop))
    return x[tuple(slices)].clone()


def drawn(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    """Cases, the same in every process: all ranks loop over them alike."""
    cases: list[Case] = []

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    return cases
