"""Cases for layers on boxes (pools, interpolation), run in one process and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, TypeVar

import torch
from hypothesis import strategies as st
from partition_kit import LayerCase, block, grid_shapes, random_blocks

from kadril.partition import Partition
from kadril.testing import integer_valued

Made = TypeVar("Made")


def seeded(make: Callable[[Random], Made | None]) -> st.SearchStrategy[Made]:
    """Return a strategy whose cases are made of a drawn seed; of None, another one is drawn.

    Of what hypothesis itself chooses, most cases are next to the last one.
    """
    seeds = st.randoms(use_true_random=True)
    return seeds.map(make).filter(lambda case: case is not None)  # type: ignore[return-value]


def some_input(
    random: Random, num_workers: int, num_spatial: int, largest: int, unbatched: bool = True
) -> LayerCase:
    """Return a partition and blocks of an input, without settings; for four workers or three."""
    num_dims = num_spatial + (1 if unbatched and random.random() < 0.2 else 2)
    fitting = {num_workers, 3 if num_workers == 4 else num_workers}
    partition = random.choice(grid_shapes(num_dims, fitting))
    first = num_dims - num_spatial
    sizes = [
        random.randint(length, length + 1 if dim < first else max(length, largest))
        for dim, length in enumerate(partition)
    ]
    pairs = zip(sizes, partition, strict=True)
    return LayerCase(partition, tuple(random_blocks(random, *pair) for pair in pairs), {})


def has_enough(make: Callable[[], torch.nn.Module], given: LayerCase) -> bool:
    """Whether torch takes the input, and there is an output for each worker."""
    try:
        out = make()(torch.empty(given.shape, device="meta")).shape
    except RuntimeError:
        return False
    return all(size >= length for size, length in zip(out, given.partition, strict=True))


def shared_block(y: torch.Tensor, P: Partition) -> torch.Tensor:
    """Return this rank's block of a global tensor whose dims of size 1 are on all workers."""
    sizes = zip(y.shape, P.shape, strict=True)
    expanded = y.expand([length if size == 1 else size for size, length in sizes])
    return block(expanded, P)


class Reference(NamedTuple):
    """Results of one process: output, gradient of the output, gradient of the input."""

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
