"""Cutting tensors among workers, and holding a partitioned layer against the torch layer."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import torch

from kadril.partition import Partition, balanced_sizes, intervals_of, world_partition
from kadril.world import World

# Unit roundoff of float64.
U = 2.0**-53

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]

Sizes = Sequence[Sequence[int]]


def arranged(world: World, shape: Sequence[int]) -> Partition:
    return world_partition(world).create_cartesian_topology_partition(shape)


def shapes_of(num_workers: int, num_axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to arrange workers along some axes."""
    for shape in itertools.product(range(1, num_workers + 1), repeat=num_axes):
        if math.prod(shape) == num_workers:
            yield shape


def random_sizes(shape: Sequence[int], P: Partition, draw: random.Random) -> list[list[int]]:
    """Block sizes along each axis: balanced, or any that make up the whole, also empty ones."""
    sizes = []
    for size, length in zip(shape, P.shape, strict=True):
        if draw.random() < 0.5:
            sizes.append(balanced_sizes(size, length))
        else:
            edges = sorted(draw.randint(0, size) for _ in range(length - 1))
            sizes.append([b - a for a, b in itertools.pairwise([0, *edges, size])])
    return sizes


def cut(x: torch.Tensor, P: Partition, sizes: Sizes | None = None) -> torch.Tensor:
    """This rank's block of a global tensor; balanced where no sizes are given."""
    if P.index is None:
        return x.new_empty(0)
    slices = []
    for dim, position in enumerate(P.index):
        given = balanced_sizes(x.shape[dim], P.shape[dim]) if sizes is None else sizes[dim]
        slices.append(slice(*intervals_of(given)[position]))
    return x[tuple(slices)].clone()


def error(got: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """The largest difference of two tensors of one shape."""
    assert got is not None
    assert expected is not None
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    return float((got.double() - expected.double()).abs().max()) if got.numel() else 0.0
