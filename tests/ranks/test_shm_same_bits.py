"""The same bits on every rank, in every run, on every way through the core."""

from __future__ import annotations

import torch
from exact import pairwise

from kadril.testing import Ranks, ranks
from kadril.world import World

NASTY = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45, -1e-40, 3.4e38, 1.0, -1.0]


def noise(count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(count, generator=generator) * 10.0 ** torch.randint(
        -3, 4, (count,), generator=generator
    )
    nasty = torch.tensor(NASTY)
    x[: len(NASTY)] = nasty.roll(rank)
    return x.to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def pairwise_in_rank_order(count: int, size: int, op: str, dtype: torch.dtype) -> torch.Tensor:
    """The definition: pairwise by rank, 16-bit floats in float32 and rounded once."""
    combine = {"sum": torch.add, "product": torch.mul, "max": larger}[op]
    return pairwise([noise(count, rank, dtype).float() for rank in range(size)], combine).to(dtype)


def larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The larger ones; a NaN if there is one."""
    return torch.where((a > b) | a.isnan(), a, b)


@ranks(3, 6)
def test_every_way_gives_the_bits_of_the_definition(world: World) -> None:
    """Inlined, gathered, scattered and shared: pairwise, whatever the number of ranks."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for op in ("sum", "max", "product"):
            for count in (100, 70_001, 300_000):
                plain = noise(count, world.rank, dtype)
                shared = world.shared_empty(count, dtype)
                shared.copy_(plain)
                world.transport.allreduce(plain, op)  # type: ignore[arg-type]
                world.transport.allreduce(shared, op)  # type: ignore[arg-type]
                expected = pairwise_in_rank_order(count, world.size, op, dtype)
                assert torch.equal(plain.isnan(), expected.isnan())
                numbers = ~expected.isnan()  # which NaN it is, is not defined
                assert torch.equal(bits(plain)[numbers], bits(expected)[numbers]), (
                    dtype,
                    op,
                    count,
                )
                assert torch.equal(bits(plain), bits(shared))


@ranks(3)
def test_1000_runs_are_one(world: World) -> None:
    """F27."""
    mine = noise(2000, world.rank, torch.float32)
    first = mine.clone()
    world.transport.allreduce(first)
    for _ in range(1000):
        x = mine.clone()
        world.transport.allreduce(x)
        assert torch.equal(bits(x), bits(first))


@ranks(2, 4)
def test_all_ranks_have_the_bits_of_rank_0(world: World) -> None:
    x = noise(100_000, world.rank, torch.float32)
    world.transport.allreduce(x)
    reference = x.clone()
    world.transport.broadcast(reference, root=0)
    assert torch.equal(bits(x), bits(reference))


def sum_of_tenths(world: World) -> list[float]:
    x = torch.full((5,), 0.1)
    world.transport.allreduce(x)
    return x.tolist()


def test_twelve_tenths() -> None:
    """Programs for MPI expect the bits of a tree: 1.2, not the 1.2000002 of one after the other."""
    with Ranks(12, patience=30.0) as world:  # so many of the pool would be for this test alone
        outcomes = world.start(sum_of_tenths).wait(60.0)
    assert [outcome.value for outcome in outcomes] == [torch.full((5,), 1.2).tolist()] * 12
