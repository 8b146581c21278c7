"""Every transport reduces exactly: all dtypes, all ops, in place or not, scaled or not."""

from __future__ import annotations

import pytest
import torch
from conformance import as_numpy, offsets, on_all_transports, uneven_counts
from exact import (
    DTYPE_NAMES,
    FLOATS,
    expected,
    inputs,
    ops_of,
    reduce_by_hosts,
    same,
    scales_of,
    torch_dtype,
)

from kadril.errors import UnsupportedError
from kadril.transport.base import OPS
from kadril.transport.tensor import tensor_bytes
from kadril.world import World

COUNT = 37  # above the bytes that ride along in a meeting for all but the 8-bit types


@on_all_transports
def test_allreduce_of_every_dtype_and_op(world: World) -> None:
    transport = world.transport
    for name in DTYPE_NAMES:
        for op in ops_of(name):
            given = inputs(name, op, world.rank, COUNT)
            array = given.clone()
            transport.allreduce(array, op)
            assert same(array, expected(name, op, world.size, COUNT)), (name, op, "in place")
            array, out = given.clone(), torch.zeros_like(given)
            transport.allreduce(as_numpy(array), op, out=as_numpy(out))
            assert same(out, expected(name, op, world.size, COUNT)), (name, op, "out")
            assert same(array, given), (name, op, "the input of a call with out")


@on_all_transports
def test_allreduce_scales_every_dtype(world: World) -> None:
    for name in DTYPE_NAMES:
        for op in ops_of(name):
            for prescale, postscale in scales_of(name, op)[1:]:
                array = inputs(name, op, world.rank, COUNT)
                world.transport.allreduce(array, op, prescale=prescale, postscale=postscale)
                reference = expected(name, op, world.size, COUNT, prescale, postscale)
                assert same(array, reference), (name, op, prescale, postscale)


@on_all_transports
def test_reduce_to_every_root(world: World) -> None:
    transport = world.transport
    for root in range(world.size):
        for name in DTYPE_NAMES:
            op = ops_of(name)[root % len(ops_of(name))]
            prescale, postscale = scales_of(name, op)[-1]
            given = inputs(name, op, world.rank, COUNT)
            array, out = given.clone(), torch.zeros_like(given)
            transport.reduce(array, root, op, out=out, prescale=prescale, postscale=postscale)
            reference = expected(name, op, world.size, COUNT, prescale, postscale)
            assert same(out, reference if world.rank == root else torch.zeros_like(given))
            assert same(array, given), (name, op, "the input of a call with out")
            transport.reduce(as_numpy(array), root, op)
            reference = expected(name, op, world.size, COUNT)
            assert same(array, reference if world.rank == root else given), (name, op, "in place")


@on_all_transports
def test_reduce_scatterv_of_uneven_parts(world: World) -> None:
    counts = uneven_counts(world.size, 17)
    begin, end = offsets(counts)[world.rank : world.rank + 2]
    for name in DTYPE_NAMES:
        for op in ops_of(name):
            prescale, postscale = scales_of(name, op)[-1]
            given = inputs(name, op, world.rank, sum(counts))
            array, out = given.clone(), torch.zeros(end - begin, dtype=torch_dtype(name))
            world.transport.reduce_scatterv(
                array, out, counts, op, prescale=prescale, postscale=postscale
            )
            reference = expected(name, op, world.size, sum(counts), prescale, postscale)
            assert same(out, reference[begin:end]), (name, op)
            assert same(array, given), (name, op, "the input")
            world.transport.reduce_scatterv(array, array[begin:end], counts, op)
            reference = expected(name, op, world.size, sum(counts))
            assert same(array[begin:end], reference[begin:end]), (name, op, "into its own part")


@on_all_transports
def test_additions_are_made_pairwise_by_rank(world: World) -> None:
    # Sums of random floats round, so their bits tell in which order they were added, and how wide.
    for name in FLOATS:
        for count in (5, 1001, 70_003):
            given = [random_floats(name, rank, count) for rank in range(world.size)]
            for scales in ((1.0, 1.0), (1.0 / 3.0, 0.7)):
                prescale, postscale = scales
                array = given[world.rank].clone()
                world.transport.allreduce(array, prescale=prescale, postscale=postscale)
                reference = reduce_by_hosts(given, scales, world.layout.hosts)
                assert_same_bits(array, reference, f"{name}[{count}] {scales}")


@on_all_transports
def test_special_values(world: World) -> None:
    nan, inf = float("nan"), float("inf")
    for name in FLOATS:
        # A NaN of any one rank, at an element of its own, is the result of every op there.
        for op in ("sum", "product", "min", "max"):
            array = torch.ones(9, dtype=torch_dtype(name))
            array[world.rank] = nan
            world.transport.allreduce(array, op)
            assert array.isnan().tolist() == [i < world.size for i in range(9)], (name, op)
        array = torch.tensor([-0.0, inf, -inf, 1.0], dtype=torch_dtype(name))
        world.transport.allreduce(array, "sum")
        assert array.tolist() == [0.0, inf, -inf, world.size]
        assert torch.signbit(array).tolist() == [True, False, True, False]
        array = torch.tensor([inf if world.rank == 0 else -inf, inf], dtype=torch_dtype(name))
        world.transport.allreduce(array, "min")
        assert array.tolist() == [inf if world.size == 1 else -inf, inf]


@on_all_transports
def test_integers_wrap_around_and_are_not_scaled_through_floats(world: World) -> None:
    big = 2**62 + 1  # not a float64
    array = torch.tensor([big, -big])
    world.transport.allreduce(array, "max")
    assert array.tolist() == [big, -big]
    small = torch.full((3,), 100, dtype=torch.int8)
    world.transport.allreduce(small)
    assert small.tolist() == [(100 * world.size + 128) % 256 - 128] * 3
    # Scaled by a fraction they are truncated toward zero, each input by itself.
    odd = torch.tensor([3, -3], dtype=torch.int32)
    world.transport.allreduce(odd, prescale=0.5)
    assert odd.tolist() == [world.size, -world.size]


@on_all_transports
def test_ops_that_make_no_sense_are_refused_before_anybody_waits(world: World) -> None:
    for name in DTYPE_NAMES:
        for op in set(OPS) - set(ops_of(name)):
            with pytest.raises(UnsupportedError, match=f"{op}.*{name}"):
                world.transport.allreduce(torch.zeros(3, dtype=torch_dtype(name)), op)
    world.transport.barrier()


def random_floats(name: str, seed: int, count: int) -> torch.Tensor:
    """Floats of many magnitudes."""
    generator = torch.Generator().manual_seed(1000 + seed)
    mantissa = torch.randn(count, generator=generator, dtype=torch.float64)
    exponent = torch.randint(-6, 7, (count,), generator=generator)
    return torch.ldexp(mantissa, exponent).to(torch_dtype(name))


def assert_same_bits(one: torch.Tensor, other: torch.Tensor, case: str) -> None:
    differences = (tensor_bytes(one) != tensor_bytes(other)).nonzero()
    assert len(differences) == 0, f"{case}: {len(differences)} bytes differ, at {differences[:4]}"
