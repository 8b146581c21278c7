"""The order of additions over tiers, against shared memory; and what compression costs.

Hosts are told apart by labels here, so all of them are this one.
"""

from __future__ import annotations

import pytest
import torch
from conformance import raises_mismatch
from test_conformance_bits import digest_case

from kadril.errors import ConfigError
from kadril.testing import RankPool, ranks
from kadril.transport.tensor import tensor_bytes
from kadril.transport.tiers.tiered import TieredTransport
from kadril.world import World

# Those that round; 16-bit floats are rounded between tiers once more.
CASES = [("float32", "sum"), ("float64", "sum"), ("complex64", "sum"), ("float32", "product")]


def digests(world: World, chunk_bytes: int = 1 << 20) -> list[str]:
    """A digest of what this rank gets, for each dtype and op."""
    if isinstance(world.transport, TieredTransport):
        world.transport.chunk_bytes = chunk_bytes
    return [
        digest_case(world.transport, name, op, number) for number, (name, op) in enumerate(CASES)
    ]


def test_contiguous_powers_of_two_have_the_bits_of_one_host(rank_pool: RankPool) -> None:
    """There may be racks of hosts, and the array may be cut into any chunks."""
    one_host = rank_pool.run(4, digests, transport="shm")
    for chunk_bytes in (1 << 20, 20_000):
        tiers = rank_pool.run(4, digests, chunk_bytes, transport="tiered", hosts="2+2")
        assert tiers == one_host
    racks = rank_pool.run(4, digests, transport="tiered", hosts="1+1+1+1", tiers="1x2x2")
    assert racks == one_host


@pytest.mark.parametrize(
    "hosts",
    [pytest.param("round robin 2", marks=pytest.mark.long), pytest.param("3+2")],
)
def test_any_layout_has_the_same_bits_on_every_rank_and_in_every_run(
    rank_pool: RankPool, hosts: str
) -> None:
    again = [rank_pool.run(5, digest_of_sums, transport="tiered", hosts=hosts) for _ in range(2)]
    assert again[0] == again[1]
    assert len(set(again[0])) == 1


def digest_of_sums(world: World) -> tuple[float, ...]:
    """Return sums of random floats of each width, as exact numbers."""
    sums = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for count in (100, 3_000, 12_000, 100_000):
            generator = torch.Generator().manual_seed(world.rank)
            array = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
            world.transport.allreduce(array)
            weights = torch.arange(1, 1 + tensor_bytes(array).numel(), dtype=torch.float64)
            sums.append((tensor_bytes(array).double() * weights).sum().item())
    return tuple(sums)


# Unit roundoff: half the distance of two numbers, relative to the smaller one.
ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def check_compressed(world: World, wire_dtype: str, dtype: torch.dtype) -> None:
    """All ranks have the same bits, within the bound of `transport/tiers/wire_format.py`."""
    u = ROUNDOFF[wire_dtype]
    for count in (5_000, 40_000, 300_001):
        given = [
            torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
            for rank in range(world.size)
        ]
        array = given[world.rank].to(dtype, copy=True)
        world.transport.allreduce(array)
        parts = [
            torch.stack([given[rank].to(dtype).double() for rank in host]).sum(0)
            for host in world.layout.hosts
        ]
        size = torch.stack(parts).abs().sum(0)
        # Each part and the sum are rounded once to 16 bits, (1 + u)^2 - 1 = 2 u + u^2, and float32
        # adds at most one rounding of 2^-24 for each rank; below 2^-14 fp16 has one of 2^-25.
        bound = (2 * u + u * u + world.size * 2.0**-24) * size + (world.size + 1) * 2.0**-25
        error = (array.double() - torch.stack(parts).sum(0)).abs()
        assert bool((error <= bound).all())
        assert bool((error > 0).any()), "nothing was rounded"
        everyone = torch.empty(count * world.size, dtype=dtype)
        world.transport.allgatherv(array, everyone, [count] * world.size)
        assert bool((everyone.view(world.size, count) == array).all())


@ranks(5, transports=["tiered"], hosts="3+2", wire_dtype="bf16")
def test_compression_to_bf16_on_two_hosts(world: World) -> None:
    check_compressed(world, "bf16", torch.float32)
    # Only sums are rounded: what is moved stays as it is, and so do integers and other ops.
    array = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    before = array.clone()
    world.transport.allreduce(array, "max")
    assert torch.equal(array, before)
    world.transport.broadcast(array, 0)
    assert torch.equal(array, before)
    numbers = torch.full((50_000,), 2**24 + 1, dtype=torch.int64)
    world.transport.allreduce(numbers)
    assert numbers.unique().tolist() == [world.size * (2**24 + 1)]


@ranks(4, transports=["tiered"], hosts="1+1+2", wire_dtype="fp16")
def test_compression_to_fp16_on_three_hosts(world: World) -> None:
    """Three hosts share the sums, so these are rounded on their way back too."""
    check_compressed(world, "fp16", torch.float32)
    check_compressed(world, "fp16", torch.float64)
    counts = [20_000 + 100 * rank for rank in range(world.size)]
    array = torch.full((sum(counts),), 1.5)
    mine = torch.empty(counts[world.rank])
    world.transport.reduce_scatterv(array, mine, counts)
    assert mine.unique().tolist() == [1.5 * world.size]
    world.transport.reduce(array, 1)
    assert array.unique().tolist() == [1.5 * world.size if world.rank == 1 else 1.5]


def check_averages(world: World, dtype: torch.dtype, counts: tuple[int, ...]) -> None:
    """Averages of 60000 by every reduction; each host's sum is too large for 16 bits."""
    size, transport = world.size, world.transport
    for count in counts:
        whole = torch.full((count * size,), 60000.0, dtype=dtype)
        part = torch.empty(count, dtype=dtype)
        transport.reduce_scatterv(whole, part, [count] * size, "sum", postscale=1.0 / size)
        assert part.unique().tolist() == [60000.0], count
        on_root = whole.clone()
        transport.reduce(on_root, 1, "sum", postscale=1.0 / size)
        assert world.rank != 1 or on_root.unique().tolist() == [60000.0], count
        transport.allreduce(whole, "sum", postscale=1.0 / size)
        assert whole.unique().tolist() == [60000.0], count


@ranks(5, transports=["tiered"], hosts="3+2")
def test_averages_that_16_bits_hold_are_not_infinite(world: World) -> None:
    """Sums of hosts once went to the others before they were divided, as infinity."""
    check_averages(world, torch.float16, (3, 600, 3_000, 100_000))
    for count in (3, 100_000):
        small = torch.full((count,), 3.0, dtype=torch.float16)
        world.transport.allreduce(small, "max", prescale=2.0**-30, postscale=2.0**30)
        assert small.unique().tolist() == [3.0]


@ranks(5, transports=["tiered"], hosts="3+2", wire_dtype="fp16")
def test_compressed_averages_are_not_infinite(world: World) -> None:
    check_averages(world, torch.float32, (3_000, 100_000))


@ranks(3, transports=["tiered"], hosts="2+1")
def test_ranks_that_compress_differently_are_told(world: World) -> None:
    import dataclasses

    transport = world.transport
    assert isinstance(transport, TieredTransport)
    if world.rank == 2:
        transport.config = dataclasses.replace(transport.config, wire_dtype="bf16")
    with pytest.raises(Exception, match="wire_dtype=bf16") as caught:
        transport.allreduce(torch.ones(5000))
    assert type(caught.value).__name__ == "MismatchError"
    if world.rank == 2:
        transport.config = dataclasses.replace(transport.config, wire_dtype="")
    with raises_mismatch(transport, "float32[3]"):
        transport.allreduce(torch.ones(3 + world.rank))


def test_dimensions_that_do_not_match_the_hosts_are_refused(rank_pool: RankPool) -> None:
    with pytest.raises(Exception, match=r"1x3 are for 1 \* 3 = 3 ranks, and there are 2"):
        rank_pool.run(2, digest_of_sums, transport="tiered", hosts="1+1", tiers="1x3")
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize("hosts", ["2+2", "3+1"])
def test_several_arrays_at_once_have_the_bits_of_one_after_the_other(
    rank_pool: RankPool, hosts: str
) -> None:
    """Long ones share a pipeline, whose chunks must not be taken for each other's."""
    for equal in rank_pool.run(4, reduce_many_and_each, transport="tiered", hosts=hosts):
        assert equal == [True] * 5


def reduce_many_and_each(world: World) -> list[bool]:
    """Whether each of several arrays has the bits that it has alone."""
    world.transport.chunk_bytes = 40_000  # type: ignore[attr-defined]
    dice = torch.Generator().manual_seed(world.rank)
    arrays = [torch.randn(count, generator=dice) for count in (90_000, 30_001, 600, 99, 50_000)]
    alone = [array.clone() for array in arrays]
    for array in alone:
        world.transport.allreduce(array, postscale=0.25)
    results = [torch.empty_like(array) for array in arrays]
    is_last = [array is arrays[-1] for array in arrays]
    outs = [a if last else r for a, r, last in zip(arrays, results, is_last, strict=True)]
    world.transport.allreduce_many(arrays, postscale=0.25, outs=outs)
    long = [array.clone() for array in alone[:2]]
    world.transport.allreduce_many(long, op="max")
    in_place = all(torch.equal(a, b) for a, b in zip(long, alone, strict=False))
    return [torch.equal(a, b) and in_place for a, b in zip(outs, alone, strict=True)]
