"""Sparse gradients: rows of an embedding, from all ranks or from some."""

from __future__ import annotations

import torch
from training_kit import both_ways

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World

# Small enough for a bucket, and large enough to travel alone.
TABLES = ((6, 2), (20_000, 8))

# Rows that a rank looks up in each step; rank 1 looks up none at first.
LOOKUPS = {0: [[1, 1, 3], [0], [5]], 1: [[], [2, 0], [5, 5]], 2: [[4], [], [1]]}


def table_of(shape: tuple[int, int]) -> torch.nn.Embedding:
    table = torch.nn.Embedding(*shape, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        table.weight.zero_()
    return table


def expected_gradient(shape: tuple[int, int], step: int, size: int) -> torch.Tensor:
    total = torch.zeros(shape, dtype=torch.float64)
    for rank in range(size):
        for row in LOOKUPS[rank][step]:
            total[row] += rank + 1
    return total


def check(
    make: type[torch.optim.Optimizer], world: World, shape: tuple[int, int], **options: object
) -> None:
    table = table_of(shape)
    bias = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = make([table.weight, *([] if make is torch.optim.SparseAdam else [bias])], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum, **options)
    reference = table_of(shape)
    plain = make([reference.weight], lr=1.0)
    for step in range(3):
        optimizer.zero_grad()
        rows = LOOKUPS[world.rank][step]
        loss = bias.sum()
        if rows:  # a rank without rows has no gradient at all
            loss = loss + (world.rank + 1) * table(torch.tensor(rows)).sum()
        loss.backward()
        optimizer.step()
        want = expected_gradient(shape, step, world.size)
        found = table.weight.grad
        if want.any() and found is not None:
            assert found.is_sparse
            assert torch.equal(found.to_dense(), want)
        reference.weight.grad = want.to_sparse(1)
        plain.step()
    assert torch.equal(table.weight, reference.weight)


@ranks(2, 3)
@both_ways
def test_rows_of_all_ranks(world: World) -> None:
    """A rank without a gradient sent a dense zero to ranks that wait for rows, in Horovod."""
    hvd.init()
    for shape in TABLES:
        for make in (torch.optim.SGD, torch.optim.SparseAdam):
            check(make, world, shape)
            check(make, world, shape, sparse_as_dense=True)
            check(make, world, shape, groups=1)


@ranks(2, transports=("c10d", "mpi:openmpi"))
@both_ways
def test_rows_on_other_transports(world: World) -> None:
    hvd.init()
    for shape in TABLES:
        check(torch.optim.SGD, world, shape)


@ranks(2)
@both_ways
def test_the_mean_of_rows(world: World) -> None:
    hvd.init()
    for shape in TABLES:
        table = table_of(shape)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight], lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([world.rank, 3])).sum().backward()
            optimizer.step()
        want = torch.zeros(shape, dtype=torch.float64)
        want[0] = want[1] = -1.5
        want[3] = -3
        assert torch.equal(table.weight, want)


@ranks(2)
@both_ways
def test_rows_here_and_a_dense_gradient_there(world: World) -> None:
    hvd.init()
    for shape in TABLES:
        table = table_of(shape)
        optimizer = torch.optim.SGD([table.weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
        want = torch.zeros(shape, dtype=torch.float64)
        for _ in range(3):
            optimizer.zero_grad()
            if world.rank:
                table.weight.sum().backward()
            else:
                table(torch.tensor([2])).sum().backward()
            optimizer.step()
            want -= 1
            want[2] -= 1
        assert torch.equal(table.weight, want)
