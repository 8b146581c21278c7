"""sparse_allreduce_async: indices and values of all ranks, side by side."""

from __future__ import annotations

import torch
from hvd_stage import everywhere, on_shm, with_sets_on_shm

import kadril.torch as hvd
from kadril.world import World


def embedding_gradient(rank: int, nnz: int, rows: int = 9) -> torch.Tensor:
    """A sparse tensor of `rows` x 2, some of its rows given twice."""
    indices = [(rank + 2 * place) % (rows // 2) for place in range(nnz)]
    values = torch.arange(2.0 * nnz).reshape(nnz, 2) * 12 + rank * 12
    return torch.sparse_coo_tensor(
        torch.tensor(indices, dtype=torch.int64)[None], values, (rows, 2), check_invariants=True
    )


def dense_sum(size: int, counts: list[int]) -> torch.Tensor:
    total = torch.zeros(9, 2)
    for rank in range(size):
        total += embedding_gradient(rank, counts[rank]).to_dense()
    return total


@everywhere
def test_sum_and_average(world: World) -> None:
    for counts in ([3] * world.size, [0 if r == 0 else r + 1 for r in range(world.size)]):
        total = dense_sum(world.size, counts)
        tensor = embedding_gradient(world.rank, counts[world.rank])
        result = hvd.sparse_allreduce_async(tensor, name="sum", op=hvd.Sum)()
        assert result.is_sparse
        assert result.shape == (9, 2)
        assert torch.equal(result.to_dense(), total)
        result = hvd.sparse_allreduce_async(tensor, name="average", op=hvd.Average)()
        assert torch.equal(result.to_dense(), total / world.size)


@on_shm
def test_the_result_has_the_entries_of_all_ranks(world: World) -> None:
    finish = hvd.sparse_allreduce_async(embedding_gradient(world.rank, 2), "entries", hvd.Sum)
    assert callable(finish)
    result = finish()
    assert not result.is_coalesced()
    assert result._nnz() == 2 * world.size


@on_shm
def test_several_in_flight_and_a_dtype_that_is_not_float(world: World) -> None:
    finishers = [
        hvd.sparse_allreduce_async(embedding_gradient(world.rank, n + 1), str(n), hvd.Sum)
        for n in range(4)
    ]
    for n in reversed(range(4)):
        expected = dense_sum(world.size, [n + 1] * world.size)
        assert torch.equal(finishers[n]().to_dense(), expected)
    places, values = torch.tensor([[0, 2], [1, 1]]), torch.tensor([5, 7])
    ints = torch.sparse_coo_tensor(places, values, (3, 2), check_invariants=True)
    result = hvd.sparse_allreduce_async(ints, "ints", hvd.Sum)()
    assert result.to_dense().tolist() == [[0, 5 * world.size], [0, 0], [0, 7 * world.size]]


@with_sets_on_shm
def test_in_a_process_set(world: World) -> None:
    members = list(range(world.size - 1))
    chosen = hvd.add_process_set(members)
    if chosen.included():
        tensor = embedding_gradient(world.rank, 2)
        result = hvd.sparse_allreduce_async(tensor, "set", hvd.Average, process_set=chosen)()
        expected = dense_sum(len(members), [2] * world.size) / len(members)
        assert torch.equal(result.to_dense(), expected)
    hvd.barrier()
