"""Adasum, against a recursive model in float64."""

from __future__ import annotations

import numpy as np
import torch
from hvd_model import Vector, adasum
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def vector(seed: int, rank: int, count: int) -> Vector:
    """Whole numbers from -8 to 8, so that they are exact in every dtype."""
    return np.random.default_rng([seed, rank]).integers(-8, 9, count).astype(np.float64)


def check(result: torch.Tensor, vectors: list[Vector]) -> None:
    """Hold a result against the model.

    A level of the tree rounds two products and their sum, and coefficients that are at most a few
    times 1: less than 4 eps of the larger of the vectors that meet, whose elements are below
    4 * 8 * 2 = 64. There are at most two levels, and the second multiplies what the first lost by
    its coefficients, below 4. In float64 the dot products of 40 elements add 40 eps of their own.
    """
    eps = torch.finfo(result.dtype).eps
    bound = (40 if result.dtype == torch.float64 else 4) * (1 + 4) * eps * 64
    difference = np.abs(result.to(torch.float64).numpy().ravel() - adasum(vectors))
    assert difference.max() <= bound, (result.dtype, difference.max(), bound)


@everywhere
def test_every_float(world: World) -> None:
    for dtype in FLOATS:
        for seed, count in enumerate((1, 5, 40)):
            vectors = [vector(seed, rank, count) for rank in range(world.size)]
            tensor = torch.tensor(vectors[world.rank]).to(dtype)
            check(hvd.allreduce(tensor, op=hvd.Adasum), vectors)
            assert torch.equal(tensor.double(), torch.from_numpy(vectors[world.rank])), "the input"
            assert hvd.allreduce_(tensor, op=hvd.Adasum) is tensor
            check(tensor, vectors)


@everywhere
def test_it_does_not_depend_on_mpi(world: World) -> None:
    """Programs written for Horovod, where it does, ask mpi_enabled() first; the answer is true."""
    assert hvd.mpi_enabled() == (world.transport.kind == "mpi")
    assert hvd.gloo_enabled() != hvd.mpi_enabled()
    alike = torch.tensor([3.0, -1.0, 2.0])
    assert hvd.allreduce(alike, op=hvd.Adasum).tolist() == alike.tolist()


@everywhere
def test_what_is_orthogonal_is_added_and_what_is_alike_is_averaged(world: World) -> None:
    # Exact in any arithmetic: the coefficients are 1, and 1/2.
    orthogonal = torch.zeros(5, dtype=torch.float64)
    orthogonal[world.rank] = float(world.rank + 1)
    result = hvd.allreduce(orthogonal, op=hvd.Adasum)
    assert result.tolist() == [place + 1.0 if place < world.size else 0.0 for place in range(5)]
    alike = torch.tensor([3.0, -1.0, 2.0])
    assert hvd.allreduce(alike, op=hvd.Adasum).tolist() == alike.tolist()
    nothing = torch.zeros(4)
    assert hvd.allreduce(nothing, op=hvd.Adasum).tolist() == [0.0] * 4
    only_mine = torch.full((3,), 5.0) if world.rank == world.size - 1 else torch.zeros(3)
    assert hvd.allreduce(only_mine, op=hvd.Adasum).tolist() == [5.0] * 3


@everywhere
def test_tensors_in_flight_together_have_coefficients_of_their_own(world: World) -> None:
    """Fused into one vector they would share dot products, and all results would be wrong."""
    counts = [3, 40, 1, 17, 8]
    handles, everyones = [], []
    for seed, count in enumerate(counts):
        vectors = [vector(seed + 10, rank, count) for rank in range(world.size)]
        tensor = torch.from_numpy(vectors[world.rank])
        handles.append(hvd.allreduce_async(tensor, name=str(seed), op=hvd.Adasum))
        everyones.append(vectors)
    for handle, vectors in zip(handles, everyones, strict=True):
        check(hvd.synchronize(handle), vectors)
    tensors = [torch.from_numpy(vectors[world.rank]) for vectors in everyones]
    for result, vectors in zip(
        hvd.grouped_allreduce(tensors, op=hvd.Adasum), everyones, strict=True
    ):
        check(result, vectors)


@on_shm
def test_shapes_and_layouts(world: World) -> None:
    vectors = [vector(77, rank, 24) for rank in range(world.size)]
    matrix = torch.from_numpy(vectors[world.rank]).reshape(4, 6)
    result = hvd.allreduce(matrix, op=hvd.Adasum)
    assert result.shape == (4, 6)
    check(result, vectors)
    result = hvd.allreduce(matrix.t(), op=hvd.Adasum)
    assert result.shape == (6, 4)
    check(result.t().contiguous(), vectors)
    assert hvd.allreduce(torch.zeros(0), op=hvd.Adasum).shape == (0,)
    scalar = hvd.allreduce(torch.tensor(2.0), op=hvd.Adasum)
    assert (scalar.shape, scalar.item()) == ((), 2.0)


@on_shm
def test_dot_products_are_made_in_float64(world: World) -> None:
    # 2^20 ones and a few large numbers: added up one after the other in float32, a norm of 2^20 is
    # off by much more than the bound below.
    count = 1 << 20
    ones = np.ones(count)
    vectors = [ones * (1 + 0.5 * rank) for rank in range(world.size)]
    for tilted in vectors:
        tilted[:: 1 << 10] = 64.0
    result = hvd.allreduce(torch.from_numpy(vectors[world.rank]).float(), op=hvd.Adasum)
    expected = adasum(vectors)
    # The roundings of `check`, and no more.
    bound = 4 * (1 + 4) * torch.finfo(torch.float32).eps * 64
    assert np.abs(result.double().numpy() - expected).max() <= bound


@on_shm
def test_all_ranks_have_the_same_bits(world: World) -> None:
    generator = torch.Generator().manual_seed(world.rank)
    mine = hvd.allreduce(torch.randn(1001, generator=generator), op=hvd.Adasum)
    everyones = hvd.allgather(mine[None])
    assert all(torch.equal(mine, theirs) for theirs in everyones)
