"""Partitions and blocks of global tensors, for all tests that split tensors among ranks.

Every rank makes the same global tensor for itself and takes its block of it; what a layer or a
primitive gives is compared with the same block of what one process gives. Drawn cases are the same
in every process, so that ranks can loop over them together.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kadril.ops import zero_volume_tensor
from kadril.partition import Partition, balanced_sizes, intervals_of, world_partition
from kadril.testing import integer_valued
from kadril.world import World

__all__ = [
    "TRANSPORTS",
    "Blocks",
    "LayerCase",
    "Sizes",
    "block",
    "blocks_of",
    "draw_cases",
    "grid",
    "grid_shapes",
    "grids_up_to",
    "nothing",
    "random_blocks",
    "random_sizes",
    "whole",
]

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]

Sizes = tuple[int, ...]
Blocks = Sequence[Sequence[int]]  # sizes of blocks along each dim
Drawn = TypeVar("Drawn")


class LayerCase(NamedTuple):
    """A layer, a partition, and the blocks of an input on it."""

    partition: Sizes  # its shape
    blocks: tuple[Sizes, ...]  # along each dim, sizes of blocks, which may be 0
    settings: dict[str, Any]  # of the torch layer

    @property
    def shape(self) -> Sizes:
        """Shape of the global input."""
        return tuple(sum(sizes) for sizes in self.blocks)


# ---- partitions -----------------------------------------------------------------------------


def grid(world: World, shape: Sequence[int], first: int = 0) -> Partition:
    """Return a Cartesian partition of the ranks of a world from `first` on."""
    ranks = world_partition(world)
    if first:
        ranks = ranks.create_partition_inclusive(range(first, first + math.prod(shape)))
    return ranks.create_cartesian_topology_partition(shape)


def grid_shapes(num_axes: int, num_workers: Collection[int]) -> list[Sizes]:
    """Return all shapes of partitions whose number of workers is one of those given."""
    lengths = range(1, max(num_workers) + 1)
    shapes = itertools.product(lengths, repeat=num_axes)
    return [shape for shape in shapes if math.prod(shape) in num_workers]


@functools.cache
def grids_up_to(num_workers: int, num_axes: int) -> list[Sizes]:
    """Return all shapes of partitions for up to so many workers; those for all of them first."""
    shapes = grid_shapes(num_axes, range(1, num_workers + 1))
    return sorted(shapes, key=lambda shape: (-math.prod(shape), shape))


# ---- global tensors and their blocks --------------------------------------------------------


def whole(shape: Sequence[int], dtype: torch.dtype = torch.float64, seed: int = 3) -> torch.Tensor:
    """Return a global tensor of whole numbers, the same one on every rank."""
    return integer_valued(shape, dtype, seed=seed)


def nothing(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return what a rank passes that holds no block."""
    return zero_volume_tensor(dtype=dtype)


def block(
    x: torch.Tensor, P: Partition, sizes: Sequence[Sequence[int] | None] | None = None
) -> torch.Tensor:
    """Return this rank's block of a global tensor; a zero-volume tensor outside of the partition.

    Args:
        x: the global tensor.
        P: its partition; a tensor with fewer dims than it has axes lies on the first ones.
        sizes: of the blocks along each dim; balanced where None.
    """
    if P.index is None:
        return nothing(x.dtype)
    slices = []
    for dim, position in enumerate(P.index[: x.dim()]):
        along = None if sizes is None else sizes[dim]
        if along is None:
            along = balanced_sizes(x.shape[dim], P.shape[dim])
        slices.append(slice(*intervals_of(along)[position]))
    return x[tuple(slices)].clone()


def random_blocks(random: Random, size: int, length: int) -> Sizes:
    """Return sizes of the blocks of a dim: balanced, or any that add up, also empty ones."""
    if random.random() < 0.5:
        return tuple(balanced_sizes(size, length))
    return between(size, [random.randint(0, size) for _ in range(length - 1)])


def random_sizes(shape: Sequence[int], P: Partition, random: Random) -> list[Sizes]:
    """Return sizes of blocks along each dim of a global tensor, as `random_blocks` has them."""
    pairs = zip(shape, P.shape, strict=True)
    return [random_blocks(random, size, length) for size, length in pairs]


@st.composite
def blocks_of(draw: st.DrawFn, size: int, length: int) -> Sizes:
    """Draw sizes of the blocks of a dim: balanced, or any that add up, also empty ones."""
    if draw(st.booleans()):
        return tuple(balanced_sizes(size, length))
    edges = st.lists(st.integers(0, size), min_size=length - 1, max_size=length - 1)
    return between(size, draw(edges))


def between(size: int, edges: Sequence[int]) -> Sizes:
    """Return sizes of what lies between edges, in a dim of a size."""
    return tuple(b - a for a, b in itertools.pairwise([0, *sorted(edges), size]))


# ---- drawn cases ----------------------------------------------------------------------------


def draw_cases(strategy: st.SearchStrategy[Drawn], num_cases: int) -> list[Drawn]:
    """Draw cases from a strategy, the same ones in every process and every run."""
    found: list[Drawn] = []

    @settings(
        max_examples=num_cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Drawn) -> None:
        found.append(case)

    collect()
    return found
