"""Gradients of allgather, broadcast and alltoall.

Those of allgather and broadcast are averaged over the ranks: so Horovod has it, and scripts rely
on it. (The exact adjoint would be the sum.)
"""

from __future__ import annotations

import torch
from hvd_model import rows_of
from hvd_stage import everywhere, grad_of, on_shm

import kadril.torch as hvd
from kadril.world import World


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64, requires_grad=True)


def upstream(rank: int, *shape: int) -> torch.Tensor:
    """A gradient of a rank's own, whose average over any number of ranks is a whole number."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    values = torch.arange(count, dtype=torch.float64) * 12
    return (values * (rank + 1) + 24 * rank).reshape(shape)


def average(size: int, *shape: int) -> torch.Tensor:
    return torch.stack([upstream(rank, *shape) for rank in range(size)]).sum(0) / size


@everywhere
def test_allgather_of_uneven_rows(world: World) -> None:
    size, rank = world.size, world.rank
    rows = [rows_of(r) for r in range(size)]
    begin = sum(rows[:rank])
    x = ones(rows[rank], 3)
    hvd.allgather(x).backward(upstream(rank, sum(rows), 3))
    assert torch.equal(grad_of(x), average(size, sum(rows), 3)[begin : begin + rows[rank]])


@everywhere
def test_grouped_allgather(world: World) -> None:
    size, rank = world.size, world.rank
    rows = [rows_of(r) for r in range(size)]
    begin = sum(rows[:rank])
    x, y = ones(rows[rank], 2), ones(1)
    first, second = hvd.grouped_allgather([x, y])
    torch.autograd.backward([first, second], [upstream(rank, sum(rows), 2), upstream(rank, size)])
    assert torch.equal(grad_of(x), average(size, sum(rows), 2)[begin : begin + rows[rank]])
    assert torch.equal(grad_of(y), average(size, size)[rank : rank + 1])


@everywhere
def test_broadcast_from_every_root(world: World) -> None:
    size, rank = world.size, world.rank
    for root in range(size):
        x = ones(2, 2)
        hvd.broadcast(x, root).backward(upstream(rank, 2, 2))
        expected = average(size, 2, 2) if rank == root else torch.zeros(2, 2, dtype=torch.float64)
        assert torch.equal(grad_of(x), expected), root
    scalar = torch.tensor(1.0, requires_grad=True)
    hvd.broadcast(scalar, 0).backward()
    assert grad_of(scalar).item() == (1.0 if rank == 0 else 0.0)


@everywhere
def test_alltoall_sends_gradients_back(world: World) -> None:
    size, rank = world.size, world.rank
    table = [[(2 * r + s) % 3 for s in range(size)] for r in range(size)]
    x = ones(sum(table[rank]), 2)
    result, splits = hvd.alltoall(x, table[rank])
    assert not splits.requires_grad
    # Each receiver marks what it got by its own rank, and where it was.
    mark = torch.arange(float(len(result)), dtype=torch.float64)[:, None] + 100 * rank
    result.backward(mark.expand(-1, 2))
    expected = []
    for receiver in range(size):
        begin = sum(table[sender][receiver] for sender in range(rank))
        expected += [begin + i + 100.0 * receiver for i in range(table[rank][receiver])]
    assert grad_of(x)[:, 0].tolist() == expected
    assert grad_of(x)[:, 1].tolist() == expected


@everywhere
def test_alltoall_without_splits(world: World) -> None:
    size, rank = world.size, world.rank
    x = ones(size * 2)
    hvd.alltoall(x).backward(torch.full((size * 2,), float(rank), dtype=torch.float64))
    assert grad_of(x).tolist() == [float(receiver) for receiver in range(size) for _ in range(2)]


@on_shm
def test_only_some_elements_have_a_gradient(world: World) -> None:
    # A gradient that is a view with strides of its own, or an expanded zero.
    size, rank = world.size, world.rank
    x = ones(2, 3)
    hvd.allgather(x)[:, 1].sum().backward()
    assert grad_of(x).tolist() == [[0.0, 1.0, 0.0]] * 2
    x = ones(3, 2)
    hvd.broadcast(x, 0).t()[0].sum().backward()
    assert grad_of(x).tolist() == ([[1.0, 0.0]] * 3 if rank == 0 else [[0.0, 0.0]] * 3)
    x = ones(size, 2)
    hvd.alltoall(x).sum().backward()
    assert grad_of(x).tolist() == [[1.0, 1.0]] * size


@on_shm
def test_a_graph_of_several_ops(world: World) -> None:
    """Backward ops have no name: they must meet in the order that autograd runs them."""
    size = world.size
    x = ones(2)
    gathered = hvd.allgather(x * 2)
    spread = hvd.broadcast(gathered, size - 1)
    total = hvd.allreduce(spread + gathered, op=hvd.Sum)
    total.backward(torch.ones(2 * size, dtype=torch.float64))
    # d total / d (spread + gathered) is `size` on every rank. The broadcast brings the average of
    # these to the last rank, which has 2 * size then; the allgather averages once more: size + 1.
    assert grad_of(x).tolist() == [2.0 * (size + 1)] * 2
