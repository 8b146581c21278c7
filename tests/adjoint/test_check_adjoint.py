"""The adjoint test itself: it passes on adjoint operators, and fails, on every rank, on others.

The operators are written with the transport here, as DistDL's primitives are built:

    broadcast     x on rank 0          ->  a copy on every rank        adjoint: sum-reduce
    all-gather    x_r on rank r        ->  all of them on every rank   adjoint: reduce-scatter
    ring shift    x_r on rank r        ->  x_r on rank r + 1           adjoint: shift back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kadril.testing import (
    RankPool,
    RanksFailed,
    check_adjoint,
    check_autograd_adjoint,
    integer_valued,
    ranks,
)
from kadril.world import World

TRANSPORTS = ("shm", "c10d")
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64]

Operator = Callable[[Any], Any]


def broadcast(world: World, shape: tuple[int, ...], dtype: torch.dtype) -> Operator:
    def forward(x: torch.Tensor | None) -> torch.Tensor:
        out = torch.zeros(shape, dtype=dtype) if x is None else x
        world.transport.broadcast(out, 0)
        return out

    return forward


def sum_reduce(world: World) -> Operator:
    def forward(y: torch.Tensor) -> torch.Tensor | None:
        world.transport.reduce(y, 0)
        return y if world.rank == 0 else None

    return forward


def all_gather(world: World, count: int) -> Operator:
    def forward(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(count * world.size, dtype=x.dtype)
        world.transport.allgatherv(x, out, [count] * world.size)
        return out

    return forward


def reduce_scatter(world: World, count: int) -> Operator:
    def forward(y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(count, dtype=y.dtype)
        world.transport.reduce_scatterv(y, out, [count] * world.size)
        return out

    return forward


def ring_shift(world: World, step: int) -> Operator:
    def forward(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        to, source = (world.rank + step) % world.size, (world.rank - step) % world.size
        world.transport.exchange([(to, x)], [(source, out)])
        return out

    return forward


def points(world: World, dtype: torch.dtype, *sizes: int) -> list[torch.Tensor]:
    return [
        integer_valued(size, dtype, seed=seed, rank=world.rank) for seed, size in enumerate(sizes)
    ]


# ---- operators that are adjoint


@ranks(1, 2, 3, 4, transports=TRANSPORTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_and_sum_reduce(world: World, dtype: torch.dtype) -> None:
    x, y = points(world, dtype, 6, 6)
    x, y = x.view(2, 3), y.view(2, 3)
    forward, adjoint = broadcast(world, (2, 3), dtype), sum_reduce(world)
    check_adjoint(world, forward, adjoint, x if world.rank == 0 else None, y)
    check_adjoint(world, adjoint, forward, y, x if world.rank == 0 else None)


@ranks(1, 2, 4, transports=TRANSPORTS)
def test_all_gather_and_reduce_scatter(world: World) -> None:
    x, y = points(world, torch.complex128, 5, 5 * world.size)
    check_adjoint(world, all_gather(world, 5), reduce_scatter(world, 5), x, y)


@ranks(1, 3)
def test_points_stay_as_they_are(world: World) -> None:
    """Transports work in place; the operators get copies."""
    x, y = points(world, torch.float64, 4, 4)
    before = x.clone(), y.clone()
    check_adjoint(world, ring_shift(world, 1), ring_shift(world, -1), x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@ranks(2)
def test_operators_of_several_tensors(world: World) -> None:
    """(a, b) -> (b, a + b), with tensors of different dtypes, and across ranks nothing."""
    a, b = points(world, torch.float64, 3, 3)

    def forward(x: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x[1], x[0] + x[1]]

    def adjoint(y: list[torch.Tensor]) -> list[torch.Tensor]:
        return [y[1], y[0] + y[1]]

    check_adjoint(world, forward, adjoint, [a, b], [b, a])


# ---- operators that are not


def wrong_factor(world: World) -> None:
    """The classic: the average's adjoint taken for the sum's."""
    x, y = points(world, torch.float64, 6, 6)

    def adjoint(value: torch.Tensor) -> torch.Tensor:
        world.transport.allreduce(value, postscale=1.0 / world.size)
        return value

    def forward(value: torch.Tensor) -> torch.Tensor:
        world.transport.allreduce(value)
        return value

    check_adjoint(world, forward, adjoint, x, y)


def wrong_on_one_rank(world: World) -> None:
    """Only rank 1 has a wrong part; every rank must say so."""
    x, y = points(world, torch.float64, 6, 6)
    back = ring_shift(world, -1)
    check_adjoint(
        world, ring_shift(world, 1), lambda v: back(v) + (1.0 if world.rank == 1 else 0.0), x, y
    )


def wrong_direction(world: World) -> None:
    x, y = points(world, torch.float64, 6, 6)
    check_adjoint(world, ring_shift(world, 1), ring_shift(world, 1), x, y)


def not_a_number(world: World) -> None:
    x, y = points(world, torch.float64, 6, 6)
    check_adjoint(world, lambda v: v * float("nan"), lambda v: v * float("nan"), x, y)


@pytest.mark.parametrize("wrong", [wrong_factor, wrong_on_one_rank, wrong_direction, not_a_number])
def test_a_wrong_adjoint_fails_on_every_rank(
    rank_pool: RankPool, wrong: Callable[[World], None]
) -> None:
    with pytest.raises(RanksFailed) as caught:
        rank_pool.run(3, wrong)
    for rank, report in caught.value.reports.items():
        assert report.kind == "AssertionError"
        assert f"not adjoint, seen from rank {rank}:" in report.text
        assert "<F x, y>  = " in report.text
        assert "<x, F* y> = " in report.text


def wrong_by_one(world: World) -> None:
    """<F x, y> is 1 + 2, <x, F* y> is 2 + 4: the message must give these numbers."""
    one = torch.full((1,), float(world.rank + 1))
    check_adjoint(world, lambda v: v, lambda v: 2 * v, one, torch.ones(1))


def test_the_message_has_both_numbers_and_each_share(rank_pool: RankPool) -> None:
    with pytest.raises(RanksFailed) as caught:
        rank_pool.run(2, wrong_by_one)
    text = caught.value.reports[1].text
    assert "<F x, y>  = 3.0" in text
    assert "<x, F* y> = 6.0" in text
    assert "difference  -3.0, allowed 0" in text
    assert "rank 0: 1.0 and 2.0" in text
    assert "rank 1: 2.0 and 4.0" in text


def other_shape(world: World) -> None:
    x, y = points(world, torch.float64, 6, 6)
    check_adjoint(world, lambda v: v[:-1] if world.rank == 1 else v, lambda v: v, x, y)


def too_large(world: World) -> None:
    x = torch.full((4,), 2.0**30, dtype=torch.float64)
    check_adjoint(world, lambda v: v, lambda v: v, x, x)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (other_shape, "F x must have the shape of y, and F* y that of x; it is not so on rank 1"),
        (too_large, "float64 does not hold them exactly"),
    ],
)
def test_misuse_is_told_on_every_rank(
    rank_pool: RankPool, misuse: Callable[[World], None], message: str
) -> None:
    with pytest.raises(RanksFailed) as caught:
        rank_pool.run(2, misuse)
    for report in caught.value.reports.values():
        assert report.kind == "ValueError"
        assert message in report.text


# ---- bounds, for values that are rounded


@ranks(2)
def test_a_bound_allows_rounding_and_no_more(world: World) -> None:
    """Float32, 2 ranks x 1000 products: 2000 roundings of at most eps / 2, taken as n * eps."""
    generator = torch.Generator().manual_seed(world.rank)
    x, y = (torch.randn(1000, generator=generator) for _ in range(2))
    bound = 2000 * torch.finfo(torch.float32).eps

    def scale(factor: float) -> Operator:
        return lambda value: value * factor

    check_adjoint(world, scale(1 / 3), scale(1 / 3), x, y, bound=bound)
    with pytest.raises(AssertionError, match="not adjoint"):
        check_adjoint(world, scale(1 / 3), scale(1 / 3 + 0.01), x.abs(), y.abs(), bound=bound)
    with pytest.raises(ValueError, match="give a bound"):
        check_adjoint(world, scale(1.0), scale(1.0), x, y, exact=False)


# ---- autograd


class SumOverRanks(torch.autograd.Function):
    """All-sum-reduce: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, world: World) -> torch.Tensor:
        ctx.world = world
        out = x.clone()
        world.transport.allreduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return SumOverRanks.apply(gradients[0], ctx.world), None


@ranks(1, 2, 4)
def test_autograd_functions_and_modules(world: World) -> None:
    x, y = points(world, torch.float64, 6, 6)
    check_autograd_adjoint(world, lambda v: SumOverRanks.apply(v, world), x, y)
    layer = torch.nn.Linear(6, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(integer_valued((4, 6), seed=7))
    check_autograd_adjoint(
        world, layer, x.view(1, 6), points(world, torch.float64, 4)[0].view(1, 4)
    )


def in_place_behind_autograd(world: World) -> None:
    """Reduce as `torch.distributed.all_reduce` does: right sum, but the identity as backward."""
    x, y = points(world, torch.float64, 6, 6)

    def forward(value: torch.Tensor) -> torch.Tensor:
        out = value * 1
        with torch.no_grad():
            world.transport.allreduce(out.detach())
        return out

    check_autograd_adjoint(world, forward, x, y)


def cut(world: World) -> None:
    x, y = points(world, torch.float64, 6, 6)
    check_autograd_adjoint(world, lambda v: v.detach() if world.rank == 1 else v, x, y)


def test_a_wrong_backward_fails_on_every_rank(rank_pool: RankPool) -> None:
    for wrong in (in_place_behind_autograd, cut):
        with pytest.raises(RanksFailed) as caught:
            rank_pool.run(2, wrong)
        assert {report.kind for report in caught.value.reports.values()} == {"AssertionError"}
    assert "(no gradient reached x)" in caught.value.reports[0].text
