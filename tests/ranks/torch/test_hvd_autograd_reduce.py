"""Gradients of allreduce and reducescatter, as scripts written for Horovod depend on them.

Every rank has a loss of its own, with a gradient of its own; that of the job is their sum:

| op      | gradient of x_r                                                 |
|---|---|
| Sum     | the sum of all gradients, with the scale factors                |
| Average | their average, with the scale factors                           |
| Min/Max | their sum, on the rank that the value came from; 0 on others    |
| Product | their sum, times what the other ranks gave                      |
"""

from __future__ import annotations

import pytest
import torch
from hvd_model import share
from hvd_stage import everywhere, grad_of, on_shm

import kadril.torch as hvd
from kadril.world import World


def leaf(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def upstream(rank: int) -> torch.Tensor:
    """The gradient that a rank's own loss gives; multiples of 12 divide by every size."""
    return torch.tensor([12.0, 24.0, -36.0], dtype=torch.float64) * (rank + 1)


def sum_of_upstreams(size: int) -> torch.Tensor:
    return sum((upstream(rank) for rank in range(size)), torch.zeros(3, dtype=torch.float64))


@everywhere
def test_sum_and_average(world: World) -> None:
    total = sum_of_upstreams(world.size)
    x = leaf(1.0, 2.0, 3.0)
    hvd.allreduce(x, op=hvd.Sum).backward(upstream(world.rank))
    assert torch.equal(grad_of(x), total)
    x = leaf(1.0, 2.0, 3.0)
    hvd.allreduce(x).backward(upstream(world.rank))
    assert torch.equal(grad_of(x), total / world.size)


@everywhere
def test_scale_factors(world: World) -> None:
    total = sum_of_upstreams(world.size)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, world.size)):
        x = leaf(1.0, 2.0, 3.0)
        result = hvd.allreduce(x, op=op, prescale_factor=2.0, postscale_factor=0.25)
        result.backward(upstream(world.rank))
        assert torch.equal(grad_of(x), total * 0.5 / divisor)


@everywhere
def test_grouped(world: World) -> None:
    total = sum_of_upstreams(world.size)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, world.size)):
        x, y = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0, 6.0)
        first, second = hvd.grouped_allreduce([x, y], op=op, prescale_factor=2.0)
        (first * 2 + second).backward(upstream(world.rank))
        assert torch.equal(grad_of(x), total * 4 / divisor)
        assert torch.equal(grad_of(y), total * 2 / divisor)


@on_shm
def test_every_float(world: World) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex128):
        x = leaf(1.0, 2.0, dtype=dtype)
        hvd.allreduce(x, op=hvd.Sum).backward(torch.full((2,), 3.0, dtype=dtype))
        assert grad_of(x).dtype == dtype
        assert grad_of(x).tolist() == [3.0 * world.size] * 2


@on_shm
def test_complex_gradients(world: World) -> None:
    # The sum is linear with real coefficients, so its adjoint does not conjugate.
    x = torch.full((2,), 1 + 1j, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).backward(torch.full((2,), complex(1.0, world.rank)))
    assert grad_of(x).tolist() == [complex(world.size, sum(range(world.size)))] * 2


@everywhere
def test_min_and_max_go_to_the_owner(world: World) -> None:
    """Horovod takes the minimum or maximum of the gradients, which is no derivative of anything."""
    size, rank = world.size, world.rank
    total = sum_of_upstreams(size)
    # Element i is largest on rank i % size, and least on the rank before it.
    values = [float((rank - place - 1) % size) for place in range(3)]
    for op, owner_value in ((hvd.Max, size - 1.0), (hvd.Min, 0.0)):
        x = leaf(*values)
        result = hvd.allreduce(x, op=op)
        assert result.tolist() == [owner_value] * 3
        result.backward(upstream(rank))
        mine = torch.tensor([value == owner_value for value in values])
        assert torch.equal(grad_of(x), torch.where(mine, total, torch.zeros(())))


@everywhere
def test_min_and_max_with_scale_factors(world: World) -> None:
    size, rank = world.size, world.rank
    total = sum_of_upstreams(size)
    for op, owner in ((hvd.Max, 0), (hvd.Min, size - 1)):
        x = leaf(float(rank), float(rank), float(rank))
        # A negative factor turns the order around: the largest is -0, of rank 0.
        result = hvd.allreduce(x, op=op, prescale_factor=-2.0, postscale_factor=3.0)
        assert result.tolist() == [-6.0 * owner] * 3
        result.backward(upstream(rank))
        assert torch.equal(grad_of(x), total * -6.0 if rank == owner else torch.zeros_like(total))


@everywhere
def test_the_lowest_rank_owns_a_tie(world: World) -> None:
    """Shared among all that have it, or given to each, it would not be a gradient any more."""
    size, rank = world.size, world.rank
    total = sum_of_upstreams(size)
    for op in (hvd.Min, hvd.Max):
        # A tie of all ranks; of all but rank 0; and of none, owned by the last.
        other = -1.0 if op == hvd.Max else 1.0
        x = leaf(5.0, other if rank == 0 else 0.0, 0.0 if rank == size - 1 else other)
        hvd.allreduce(x, op=op).backward(upstream(rank))
        owners = (0, min(1, size - 1), size - 1)
        mine = torch.tensor([owner == rank for owner in owners])
        assert torch.equal(grad_of(x), torch.where(mine, total, torch.zeros(())))


@everywhere
def test_product_with_and_without_zeros(world: World) -> None:
    """A quotient of the product and one's own value would be 0/0 where that is zero."""
    size, rank = world.size, world.rank
    factors = [[2.0, 0.0 if r == 0 else 3.0, 0.0 if r in (0, size - 1) else 1.0] for r in range(4)]
    x = leaf(*factors[rank])
    hvd.allreduce(x, op=hvd.Product).backward(upstream(rank))
    others = torch.ones(3, dtype=torch.float64)
    for other in range(size):
        if other != rank:
            others *= torch.tensor(factors[other], dtype=torch.float64)
    assert torch.equal(grad_of(x), sum_of_upstreams(size) * others)
    y = leaf(*factors[rank])
    result = hvd.allreduce(y, op=hvd.Product, prescale_factor=2.0, postscale_factor=0.5)
    result.backward(upstream(rank))
    assert torch.equal(grad_of(y), grad_of(x) * 2.0**size * 0.5)


@everywhere
def test_grouped_min_max_and_product(world: World) -> None:
    size, rank = world.size, world.rank
    total = sum_of_upstreams(size)
    for op in (hvd.Min, hvd.Max):
        x = leaf(float(rank), float(-rank), float(rank))
        y = leaf(float(-rank), float(rank), 0.0 if rank else 1.0)
        results = hvd.grouped_allreduce([x, y], op=op)
        torch.stack(results).sum(0).backward(upstream(rank))
        for tensor in (x, y):
            assert torch.equal(hvd.allreduce(grad_of(tensor), op=hvd.Sum), total)
        assert (grad_of(x)[0].item() != 0.0) == (rank == (0 if op == hvd.Min else size - 1))
        assert (grad_of(y)[0].item() != 0.0) == (rank == (0 if op == hvd.Max else size - 1))
    (result,) = hvd.grouped_allreduce([leaf_of := leaf(2.0, 2.0, 2.0)], op=hvd.Product)
    result.backward(upstream(rank))
    assert torch.equal(grad_of(leaf_of), total * 2.0 ** (size - 1))


@everywhere
def test_reducescatter_of_uneven_rows(world: World) -> None:
    size, rank, rows = world.size, world.rank, 5
    whole = torch.arange(1.0, 11.0, dtype=torch.float64).reshape(rows, 2)  # upstream, all shares
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = torch.ones(rows, 2, dtype=torch.float64, requires_grad=True)
        mine = whole[share(rows, size, rank)].clone()
        hvd.reducescatter(x, op=op).backward(mine)
        assert torch.equal(grad_of(x), whole * factor)
        # Horovod scales the gradient it was given in place, and whoever else holds it sees that.
        assert torch.equal(mine, whole[share(rows, size, rank)])
        x = torch.ones(rows, 2, dtype=torch.float64, requires_grad=True)
        hvd.reducescatter(x, op=op, prescale_factor=2.0, postscale_factor=4.0).backward(mine)
        assert torch.equal(grad_of(x), whole * factor * 8.0)
        assert torch.equal(mine, whole[share(rows, size, rank)])


@on_shm
def test_grouped_reducescatter(world: World) -> None:
    size, rank = world.size, world.rank
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = torch.ones(5, 2, requires_grad=True)
        y = torch.ones(size, requires_grad=True)
        first, second = hvd.grouped_reducescatter([x, y], op=op, prescale_factor=2.0)
        (first.sum() * 3 + second.sum() * (rank + 1)).backward()
        assert grad_of(x).tolist() == [[6.0 * factor] * 2] * 5
        assert grad_of(y).tolist() == [2.0 * factor * (other + 1) for other in range(size)]


@on_shm
def test_through_compression(world: World) -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        x = torch.ones(4, requires_grad=True)
        result = hvd.allreduce(x, op=hvd.Sum, compression=compression)
        (result * 3).sum().backward()
        assert grad_of(x).dtype == torch.float32
        assert grad_of(x).tolist() == [3.0 * world.size] * 4


@everywhere
def test_one_tensor_used_twice_in_a_graph(world: World) -> None:
    size, rank = world.size, world.rank
    x = leaf(1.0, 2.0, 3.0)
    first = hvd.allreduce(x, op=hvd.Sum, name="once")
    second = hvd.allreduce(x * x, op=hvd.Sum, name="again")
    (first + second + 2 * first).backward(upstream(rank))
    total = sum_of_upstreams(size)
    assert torch.equal(grad_of(x), total * 3 + total * 2 * x.detach())
    # And one after the other: the gradient goes through both.
    y = leaf(1.0, 1.0, 1.0)
    hvd.allreduce(hvd.allreduce(y, op=hvd.Sum), op=hvd.Sum).backward(upstream(rank))
    assert torch.equal(grad_of(y), total * size)


@on_shm
def test_backward_again_and_of_the_backward(world: World) -> None:
    x = leaf(1.0, 2.0, 3.0)
    result = hvd.allreduce(x, op=hvd.Sum)
    for turn in (1, 2):
        result.backward(upstream(world.rank), retain_graph=True)
        assert torch.equal(grad_of(x), sum_of_upstreams(world.size) * turn)


@on_shm
def test_gradients_of_gradients(world: World) -> None:
    # y = (sum_r x_r)^2 on every rank; dL/dx = sum over ranks of 2 y' = 2 * size * sum; and again
    # the derivative of that: 2 * size, summed over ranks.
    x = leaf(float(world.rank + 1))
    total = hvd.allreduce(x, op=hvd.Sum)
    (first,) = torch.autograd.grad((total * total).sum(), x, create_graph=True)
    assert first.tolist() == [2.0 * world.size * sum(range(1, world.size + 1))]
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [2.0 * world.size**2]


@on_shm
def test_forms_that_are_not_differentiable(world: World) -> None:
    rows = torch.ones(world.size, 2, requires_grad=True)
    for handle in (
        hvd.allreduce_async(rows),
        hvd.allgather_async(rows),
        hvd.broadcast_async(rows, 0),
        hvd.reducescatter_async(rows),
    ):
        assert not hvd.synchronize(handle).requires_grad
    assert not hvd.synchronize(hvd.alltoall_async(rows))[0].requires_grad
    assert not hvd.synchronize(hvd.grouped_allreduce_async([rows]))[0].requires_grad
    parameter = torch.ones(3, requires_grad=True)
    assert hvd.allreduce_(parameter).grad_fn is None
    with torch.no_grad():
        assert not hvd.allreduce(rows).requires_grad
    assert not hvd.allreduce(rows.detach()).requires_grad


@on_shm
def test_adasum_has_its_derivative(world: World) -> None:
    """Horovod takes Adasum of the gradients, which is no derivative of anything.

    Where all vectors are alike the derivative by each of two is half the identity; so each level of
    the tree halves, and the last of three ranks, which waits for the second level, is halved once.
    """
    size, rank = world.size, world.rank
    x = leaf(1.0, 2.0, 3.0)
    hvd.allreduce(x, op=hvd.Adasum).backward(upstream(rank))
    share = {1: 1.0, 2: 0.5, 3: 0.5 if rank == 2 else 0.25, 4: 0.25}[size]
    # Products of these numbers by 14, the square of the length, and back: 16 roundings at most.
    bound = 16 * 2.0**-53 * sum_of_upstreams(size).abs().max()
    assert (grad_of(x) - sum_of_upstreams(size) * share).abs().max() <= bound
    # A vector of zeros counts with a coefficient of 1, as it does in the result.
    y = leaf(0.0, 0.0, 0.0)
    hvd.allreduce(y, op=hvd.Adasum).backward(upstream(rank))
    assert torch.equal(grad_of(y), sum_of_upstreams(size))


@on_shm
def test_integers_have_no_gradient(world: World) -> None:
    result = hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Sum)
    assert not result.requires_grad
    with pytest.raises(RuntimeError):
        result.sum().backward()
