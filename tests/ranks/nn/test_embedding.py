"""Embeddings: torch's vectors and gradients, with indices and rows of the table cut anyhow.

Tables and gradients are whole numbers of at most 8, so sums are exact and compared with `==`.
"""

from __future__ import annotations

import random

import pytest
import torch
from partition_kit import TRANSPORTS, block, grid, grid_shapes, random_sizes
from rounding_kit import U, error

from kadril.nn.embedding import DistributedEmbedding
from kadril.partition import balanced_intervals
from kadril.testing import integer_valued, ranks
from kadril.world import World


def ordinary(
    num: int, dim: int, padding: int | None = None, **options: object
) -> torch.nn.Embedding:
    layer = torch.nn.Embedding(num, dim, padding, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.copy_(integer_valued(layer.weight.shape, seed=1))
    return layer


def indices(shape: list[int], num: int, seed: int) -> torch.Tensor:
    return torch.randint(0, num, shape, generator=torch.Generator().manual_seed(seed))


@ranks(1, 2, 3, 4)
def test_copies_are_torchs_on_any_cut(world: World) -> None:
    draw = random.Random(1)
    for num_dims in (1, 2, 3):
        for shape in grid_shapes(num_dims, [world.size]):
            P_x = grid(world, shape)
            size = [draw.randint(4, 6) for _ in shape]
            padding = draw.choice([None, 2, -1])
            layer, same = ordinary(9, 3, padding), ordinary(9, 3, padding)
            x = indices(size, 9, draw.randint(0, 99))
            sizes = random_sizes(size, P_x, draw)
            twin = DistributedEmbedding.of(same, P_x)
            expected = layer(x)
            g = integer_valued(expected.shape, seed=2)
            expected.backward(g)
            P_y = grid(world, [*shape, 1])
            y = twin(block(x, P_x, sizes))
            assert torch.equal(y, block(expected.detach(), P_y, [*sizes, [3]]))
            y.backward(block(g, P_y, [*sizes, [3]]))
            assert torch.equal(twin.weight.grad, layer.weight.grad)  # type: ignore[arg-type]
            assert twin.weight is same.weight


@ranks(1, 2, 3, 4)
def test_rows_of_the_table(world: World) -> None:
    draw = random.Random(2)
    for lead, num in grid_shapes(2, [world.size]):
        for padding in (None, 0, 7):
            P = grid(world, (lead, 1, num))
            layer = ordinary(9, 3, padding)
            twin = DistributedEmbedding.vocabulary_parallel(
                P, 9, 3, padding_idx=padding, dtype=torch.float64
            )
            twin.load_state_dict(layer.state_dict())
            x = indices([4, 5], 9, draw.randint(0, 99))
            expected = layer(x)
            g = integer_valued(expected.shape, seed=2)
            expected.backward(g)
            P_x, P_y = twin.P_x, grid(world, (lead, 1, 1))
            if num == 1:
                assert P_x.shape == (lead, 1)
            y = twin(block(x, P_x))
            if P_x.active:
                places = P_x.create_cartesian_topology_partition([lead, 1, 1])
                assert torch.equal(y, block(expected.detach(), places))
                y.backward(block(g, places))
            else:
                assert y.numel() == 0
                y.sum().backward()
            assert P.index is not None
            assert P_y.size == P_x.size
            rows = slice(*balanced_intervals(9, num)[P.index[-1]])
            assert torch.equal(twin.weight.grad, layer.weight.grad[rows])  # type: ignore[index, arg-type]
            assert torch.equal(twin.state_dict()["weight"], layer.weight)


@ranks(4, transports=TRANSPORTS)
def test_norms_and_frequencies_of_all_indices(world: World) -> None:
    for P_x, P_w in [
        (grid(world, (4,)), None),
        (grid(world, (2,)), grid(world, (2, 2))),
    ]:
        options = {"max_norm": 3.0, "scale_grad_by_freq": True}
        layer, same = ordinary(9, 3, **options), ordinary(9, 3, **options)
        x = indices([8], 9, 5)
        twin = DistributedEmbedding.of(same, P_x, P_w)
        expected = layer(x)
        g = integer_valued(expected.shape, seed=2)
        expected.backward(g)
        y = twin(block(x, P_x))
        places = P_x.create_cartesian_topology_partition([*P_x.shape, 1])
        if P_x.active:
            assert torch.equal(y, block(expected.detach(), places))
            y.backward(block(g, places))
        else:
            y.sum().backward()
        assert torch.equal(twin.state_dict()["weight"], layer.weight)
        rows = slice(None)
        if P_w is not None and P_w.index is not None:
            rows = slice(*balanced_intervals(9, 2)[P_w.index[-1]])
        # Up to 8 terms of at most 8, each divided and rounded there, and all at once here.
        assert layer.weight.grad is not None
        assert error(twin.weight.grad, layer.weight.grad[rows]) <= 2 * 8 * 8 * 8 * U


@ranks(3)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (3, 1))
    layer = DistributedEmbedding(P_x, 5, 2)
    x = torch.full((2, 2), 5 if world.rank == 1 else 4)
    with pytest.raises(IndexError if world.rank == 1 else ValueError) as caught:
        layer(x)
    assert ("index 5 is out of range" if world.rank == 1 else "rank 1 failed") in str(caught.value)
    with pytest.raises(TypeError, match="float32"):
        layer(x.float())
    with pytest.raises(ValueError, match="one axis for each dim"):
        layer(x[0])
    with pytest.raises(ValueError, match="too few"):
        DistributedEmbedding.vocabulary_parallel(grid(world, (1, 3)), 2, 2)
    with pytest.raises(ValueError, match="same axes and one more"):
        DistributedEmbedding(P_x, 5, 2, P_w=P_x)
    with pytest.raises(ValueError, match="sparse"):
        DistributedEmbedding(P_x, 5, 2, sparse=True)
    assert layer(torch.zeros(2, 2, dtype=torch.int32)).shape == (2, 2, 2)
    assert DistributedEmbedding(grid(world, (1,)), 5, 2)(
        torch.zeros(0 if world.rank else 3, dtype=torch.int64)
    ).shape == ((0,) if world.rank else (3, 2))
