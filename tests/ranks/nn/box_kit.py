"""Cases for layers on boxes, drawn by hypothesis in the session, and blocks of global tensors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kadril import ops
from kadril.partition import Interval, Partition, balanced_intervals, intervals_of, world_partition
from kadril.testing import integer_valued
from kadril.world import World

Settings = dict[str, Any]


class Case(NamedTuple):
    """One input on one partition, for one layer."""

    shape: tuple[int, ...]  # of the partition
    sizes: tuple[int, ...]  # of the global input
    blocks: tuple[tuple[int, ...], ...]  # for each dim, sizes of blocks, which may be 0
    settings: Settings  # of the layer

    @property
    def num_dims(self) -> int:
        return len(self.sizes)


def drawn(make: Callable[[Random], Case | None], num: int) -> list[Case]:
    """As many cases, the same in every run; what is made of a draw may be None, for another one.

    Cases are made of a seed that hypothesis draws: of its own choices, most are next to the last.
    """
    found: list[Case] = []

    @settings(
        max_examples=num,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True).map(make).filter(lambda case: case is not None))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


@functools.cache
def partition_shapes(num_workers: int, num_dims: int) -> list[tuple[int, ...]]:
    """Shapes for as many workers; for four of them also for three."""
    wanted = {num_workers, 3 if num_workers == 4 else num_workers}
    shapes = itertools.product(range(1, num_workers + 1), repeat=num_dims)
    return [shape for shape in shapes if math.prod(shape) in wanted]


def cut(random: Random, size: int, length: int) -> tuple[int, ...]:
    """Blocks of a dim: balanced, or of any sizes."""
    if random.random() < 0.5:
        return tuple(each.size for each in balanced_intervals(size, length))
    places = sorted(random.randint(0, size) for _ in range(length - 1))
    return tuple(b - a for a, b in itertools.pairwise([0, *places, size]))


class Input(NamedTuple):
    """A partition, the global size of each dim, and blocks."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]


def some_input(
    random: Random, num_workers: int, num_spatial: int, largest: int, unbatched: bool = True
) -> Input:
    num_dims = num_spatial + (1 if unbatched and random.random() < 0.2 else 2)
    shape = random.choice(partition_shapes(num_workers, num_dims))
    first = num_dims - num_spatial
    sizes = tuple(
        random.randint(length, length + 1 if dim < first else max(length, largest))
        for dim, length in enumerate(shape)
    )
    blocks = tuple(cut(random, size, length) for size, length in zip(sizes, shape, strict=True))
    return Input(shape, sizes, blocks)


def has_enough(make: Callable[[], torch.nn.Module], given: Input) -> bool:
    """Whether torch takes the input, and there is an output for each worker."""
    try:
        out = make()(torch.empty(given.sizes, device="meta")).shape
    except RuntimeError:
        return False
    return all(size >= length for size, length in zip(out, given.shape, strict=True))


def arranged(world: World, shape: Sequence[int]) -> Partition:
    return world_partition(world).create_cartesian_topology_partition(shape)


def box_of(P: Partition, blocks: Sequence[Sequence[Interval]]) -> tuple[slice, ...] | None:
    if P.index is None:
        return None
    mine = [along[position] for along, position in zip(blocks, P.index, strict=True)]
    return tuple(slice(each.start, each.stop) for each in mine)


def held(x: torch.Tensor, P: Partition, case: Case) -> torch.Tensor:
    """What this rank holds of the global input."""
    box = box_of(P, [intervals_of(sizes) for sizes in case.blocks])
    return ops.zero_volume_tensor(dtype=x.dtype) if box is None else x[box].clone()


def balanced(y: torch.Tensor, P: Partition, is_shared: bool = False) -> torch.Tensor:
    """What this rank should have of the global output; dims of size 1 may be on all workers."""
    box = box_of(
        P,
        [
            [Interval(0, 1)] * length
            if is_shared and size == 1
            else balanced_intervals(size, length)
            for size, length in zip(y.shape, P.shape, strict=True)
        ],
    )
    return y.new_empty(0) if box is None else y[box].clone()


class Reference(NamedTuple):
    """What one process gets: output, gradient of the output, gradient of the input."""

    y: torch.Tensor
    y_grad: torch.Tensor
    x_grad: torch.Tensor


def sequential(
    layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, factor: int = 1
) -> Reference:
    """Run a layer in one process; gradients of the output are multiples of a factor."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y_grad = integer_valued(y.shape, torch.float64, seed=9) * factor
    y.backward(y_grad)
    assert x.grad is not None
    return Reference(y.detach(), y_grad, x.grad)


def run(
    layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y_grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a layer on ranks: this rank's output, and the gradient of its input."""
    x.requires_grad_()
    y = layer(x)
    y.backward(y_grad.reshape(y.shape))
    assert x.grad is not None
    return y.detach(), x.grad
