"""Any shape, any alignment, any counts: nothing about memory matters but its bytes."""

from __future__ import annotations

import pytest
import torch
from conformance import TRANSPORTS, on_all_transports
from exact import DTYPE_NAMES, expected, inputs, misaligned, ops_of, same, torch_dtype
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kadril.testing import RankPool, ranks
from kadril.world import World

SHAPES = ((), (0,), (1,), (3, 0, 2), (1, 1), (2, 3, 4), (1024,), (1025,), (4096,), (4097,))
COUNTS = (16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 262_147, 300_001)


@on_all_transports
def test_shapes(world: World) -> None:
    for shape in SHAPES:
        count = torch.Size(shape).numel()
        array = inputs("float32", "sum", world.rank, count).reshape(shape)
        world.transport.allreduce(array)
        assert same(array, expected("float32", "sum", world.size, count).reshape(shape)), shape
        array = inputs("int16", "max", world.rank, count).reshape(shape)
        world.transport.broadcast(array, world.size - 1)
        assert same(array, inputs("int16", "max", world.size - 1, count).reshape(shape)), shape


@on_all_transports
def test_counts_around_chunks(world: World) -> None:
    for index, count in enumerate(COUNTS):
        name = ("float32", "int8", "bfloat16", "float64")[index % 4]
        array = inputs(name, "sum", world.rank, count)
        out = torch.zeros_like(array)
        world.transport.allreduce(array, out=out)
        assert same(out, expected(name, "sum", world.size, count)), (name, count)
        world.transport.reduce(array, count % world.size)
        if world.rank == count % world.size:
            assert same(array, out), (name, count, "reduce")
        else:
            assert same(array, inputs(name, "sum", world.rank, count)), (name, count, "not root")


@on_all_transports
def test_misaligned_memory(world: World) -> None:
    for name in DTYPE_NAMES:
        op = ops_of(name)[-1]
        for count in (1, 33, 4099):
            for offset in (1, 3):
                array = misaligned(inputs(name, op, world.rank, count), offset)
                out = misaligned(torch.zeros_like(array), 5)
                world.transport.allreduce(array, op, out=out)
                assert same(out, expected(name, op, world.size, count)), (name, count, offset)
        array = misaligned(inputs(name, op, world.rank, 2048), 1)
        world.transport.broadcast(array, 0)
        assert same(array, inputs(name, op, 0, 2048)), name


@on_all_transports
def test_views_into_larger_memory(world: World) -> None:
    # What lies around a view must stay as it is.
    memory = torch.full((300,), 77.0)
    view = memory[100:200]
    view.copy_(inputs("float32", "sum", world.rank, 100))
    world.transport.allreduce(view)
    assert same(memory[100:200], expected("float32", "sum", world.size, 100))
    assert set(memory[:100].tolist() + memory[200:].tolist()) == {77.0}


@ranks(2, transports=TRANSPORTS, timeout=100.0)
def test_more_than_a_segment(world: World) -> None:
    count = (9 << 20) + 5  # 36 MiB of float32: more than one segment of 32 MiB
    array = torch.arange(count, dtype=torch.float32).remainder_(1024).add_(world.rank)
    world.transport.allreduce(array, postscale=0.5)
    assert same(array, torch.arange(count, dtype=torch.float32).remainder_(1024).add_(0.5))
    parts = [count // 3, count - count // 3]
    out = torch.zeros(parts[world.rank])
    world.transport.reduce_scatterv(array, out, parts)
    begin = 0 if world.rank == 0 else parts[0]
    assert same(out, 2 * array[begin : begin + parts[world.rank]])


@pytest.mark.big
@pytest.mark.long
@ranks(2, transports=TRANSPORTS, timeout=110.0)
def test_more_than_2_to_the_31_bytes(world: World) -> None:
    count = (1 << 31) + 4099
    array = torch.full((count,), world.rank + 1, dtype=torch.uint8)
    array[-1], array[1 << 31] = 10 + world.rank, 20 + world.rank
    world.transport.broadcast(array, 1)
    assert (array[0], array[1 << 31], array[-1]) == (2, 21, 11)
    array += world.rank
    world.transport.allreduce(array)
    assert (array[0], array[1 << 31], array[-1]) == (5, 43, 23)
    assert int(array.count_nonzero()) == count
    halo = torch.zeros_like(array)
    other = 1 - world.rank
    world.transport.exchange([(other, array)], [(other, halo)])
    assert torch.equal(halo, array)


def run_cases(world: World, cases: list[tuple[str, str, list[int], list[int], int]]) -> None:
    """Reduce, scatter and gather back arrays of drawn shapes and counts."""
    for name, op, shape, counts, root in cases:
        count = torch.Size(shape).numel()
        array = inputs(name, op, world.rank, count).reshape(shape)
        world.transport.allreduce(array, op)
        assert same(array, expected(name, op, world.size, count).reshape(shape)), (name, op, shape)
        total, mine = sum(counts[: world.size]), counts[world.rank]
        begin = sum(counts[: world.rank])
        whole = inputs(name, op, world.rank, total)
        part = torch.zeros(mine, dtype=torch_dtype(name))
        world.transport.reduce_scatterv(whole, part, counts[: world.size], op)
        reference = expected(name, op, world.size, total)
        assert same(part, reference[begin : begin + mine]), (name, op, counts)
        world.transport.allgatherv(part, whole, counts[: world.size])
        assert same(whole, reference), (name, op, counts, "gathered")
        world.transport.reduce(whole, root % world.size, "max" if op == "min" else op)
        world.transport.broadcast(whole, root % world.size)


def draw_case(data: st.DataObject) -> tuple[str, str, list[int], list[int], int]:
    name = data.draw(st.sampled_from(DTYPE_NAMES))
    op = data.draw(st.sampled_from(ops_of(name)))
    shape = data.draw(st.lists(st.integers(0, 12), max_size=4))
    counts = data.draw(st.lists(st.integers(0, 3000), min_size=4, max_size=4))
    return name, op, shape, counts, data.draw(st.integers(0, 3))


@pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
@settings(
    derandomize=True,
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_drawn_shapes_and_counts(rank_pool: RankPool, transport: str, data: st.DataObject) -> None:
    # Many cases go to the ranks at once: a call of the pool costs more than a collective.
    cases = [draw_case(data) for _ in range(8)]
    for size in (2, 3, 4):
        rank_pool.run(size, run_cases, cases, transport=transport)
