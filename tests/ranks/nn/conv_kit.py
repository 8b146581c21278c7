"""What the tests of convolutions have in common: drawn cases, and the layer they are compared with.

Values are whole numbers in float64, so every sum is exact, and equality is meant bit for bit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kadril.ops import zero_volume_tensor
from kadril.partition import Partition, balanced_sizes, intervals_of, world_partition
from kadril.testing import integer_valued
from kadril.world import World

Drawn = TypeVar("Drawn")
Sizes = tuple[int, ...]


class Case(NamedTuple):
    """A layer, a partition, and the blocks of an input on it."""

    partition: Sizes  # batch x channels x spatial
    blocks: tuple[Sizes, ...]  # sizes along each axis
    in_channels: int
    out_channels: int
    settings: dict[str, Any]  # of the torch layer

    @property
    def shape(self) -> Sizes:
        """Of the whole input."""
        return tuple(sum(sizes) for sizes in self.blocks)

    @property
    def num_spatial(self) -> int:
        """Spatial dims."""
        return len(self.partition) - 2


def draw_cases(strategy: st.SearchStrategy[Drawn], number: int) -> list[Drawn]:
    """Cases from a strategy, the same ones every time."""
    found: list[Drawn] = []

    @settings(
        max_examples=number,
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


@functools.cache
def partitions(size: int, num_axes: int) -> list[Sizes]:
    """Shapes for up to so many workers; those for all of them first."""
    fitting: list[Sizes] = [()]
    for _ in range(num_axes):
        fitting = [
            (*shape, length) for shape in fitting for length in range(1, size // volume(shape) + 1)
        ]
    return sorted(fitting, key=lambda shape: (-volume(shape), shape))


def volume(shape: Sequence[int]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


@st.composite
def blocks_of(draw: st.DrawFn, size: int, length: int) -> Sizes:
    """A dim over workers: balanced, or cut anywhere, so that some may have nothing."""
    if draw(st.booleans()):
        return tuple(balanced_sizes(size, length))
    cuts = sorted(draw(st.lists(st.integers(0, size), min_size=length - 1, max_size=length - 1)))
    return tuple(stop - start for start, stop in itertools.pairwise([0, *cuts, size]))


def arranged(world: World, shape: Sequence[int]) -> Partition:
    return world_partition(world).create_cartesian_topology_partition(shape)


def block(x: torch.Tensor, P: Partition, blocks: Sequence[Sequence[int]]) -> torch.Tensor:
    """This rank's part of a whole tensor."""
    if P.index is None:
        return zero_volume_tensor(dtype=x.dtype)
    slices = []
    for sizes, position in zip(blocks, P.index, strict=True):
        interval = intervals_of(sizes)[position]
        slices.append(slice(interval.start, interval.stop))
    return x[tuple(slices)].clone()


def balanced_block(x: torch.Tensor, P: Partition) -> torch.Tensor:
    """This rank's part of a whole tensor that is cut evenly."""
    pairs = zip(x.shape, P.shape, strict=True)
    return block(x, P, [balanced_sizes(size, length) for size, length in pairs])


def with_whole_numbers(layer: torch.nn.Module) -> Any:
    """A layer in float64 whose parameters are whole numbers."""
    layer = layer.double()
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters(), 1):
            parameter.copy_(integer_valued(parameter.shape, seed=seed))
    return layer


def gradients(layer: torch.nn.Module) -> list[torch.Tensor]:
    """Of all parameters, taken out."""
    found = []
    for parameter in layer.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def assert_all_equal(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
