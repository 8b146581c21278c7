"""Groups: several tensors under one name and one handle."""

from __future__ import annotations

import torch
from exact import same
from hvd_model import DTYPE_NAMES, OPS, gathered, given, ops_of, reduced, rows_of, share
from hvd_stage import everywhere, on_shm, with_peers_on_shm

import kadril.torch as hvd
from kadril.world import World


@everywhere
def test_grouped_allreduce_of_mixed_dtypes(world: World) -> None:
    for op in OPS:
        names = [name for name in DTYPE_NAMES if op in ops_of(name)]
        tensors = [given(name, op, world.rank, 3, 4) for name in names]
        handle = hvd.grouped_allreduce_async(tensors, name=op, op=OPS[op])
        assert isinstance(handle, int)
        results = hvd.synchronize(handle)
        assert isinstance(results, tuple)
        for name, tensor, result in zip(names, tensors, results, strict=True):
            assert same(result, reduced(name, op, range(world.size), 3, 4)), (name, op)
            assert same(tensor, given(name, op, world.rank, 3, 4)), (name, op, "the input")


@everywhere
def test_blocking_and_in_place_forms(world: World) -> None:
    shapes = [(5,), (2, 3), (), (0, 4), (1, 1, 7)]
    expected = [reduced("float32", "sum", range(world.size), *shape) for shape in shapes]

    def fresh() -> list[torch.Tensor]:
        return [given("float32", "sum", world.rank, *shape) for shape in shapes]

    results = hvd.grouped_allreduce(fresh(), op=hvd.Sum)
    assert isinstance(results, list)
    assert all(same(*pair) for pair in zip(results, expected, strict=True))
    tensors = fresh()
    results = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(mine is theirs for mine, theirs in zip(results, tensors, strict=True))
    assert all(same(*pair) for pair in zip(tensors, expected, strict=True))
    tensors = fresh()
    results = hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum))
    assert all(mine is theirs for mine, theirs in zip(results, tensors, strict=True))
    assert all(same(*pair) for pair in zip(tensors, expected, strict=True))


@on_shm
def test_the_default_is_the_average(world: World) -> None:
    tensors = [given("float32", "average", world.rank, 5), given("int64", "average", world.rank, 3)]
    for results in (
        hvd.grouped_allreduce(tensors),
        hvd.synchronize(hvd.grouped_allreduce_async(tensors)),
        hvd.grouped_allreduce_([tensor.clone() for tensor in tensors]),
    ):
        assert same(results[0], reduced("float32", "average", range(world.size), 5))
        assert same(results[1], reduced("int64", "average", range(world.size), 3))


@everywhere
def test_grouped_allgather_of_uneven_rows(world: World) -> None:
    names = ("float32", "int16", "bool", "complex64")
    all_rows = [[rows_of(rank, place) for rank in range(world.size)] for place in range(4)]
    tensors = [
        given(name, "sum", world.rank, rows[world.rank], 3)
        for name, rows in zip(names, all_rows, strict=True)
    ]
    for results in (
        hvd.grouped_allgather(tensors, name="blocking"),
        hvd.synchronize(hvd.grouped_allgather_async(tensors, name="async")),
    ):
        assert isinstance(results, tuple)
        for name, rows, result in zip(names, all_rows, results, strict=True):
            assert same(result, gathered(name, range(world.size), rows, 3)), name


@everywhere
def test_grouped_reducescatter_of_uneven_rows(world: World) -> None:
    cases = [("float32", 7), ("int64", 2), ("bfloat16", 12), ("float64", 0)]
    for op in ("average", "sum"):
        tensors = [given(name, op, world.rank, rows, 2) for name, rows in cases]
        results = hvd.grouped_reducescatter(tensors, op=OPS[op])
        assert isinstance(results, list)
        later = hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=OPS[op]))
        for (name, rows), *both in zip(cases, results, later, strict=True):
            whole = reduced(name, op, range(world.size), rows, 2)
            for result in both:
                assert same(result, whole[share(rows, world.size, world.rank)]), (name, op)


@on_shm
def test_groups_do_not_mix(world: World) -> None:
    handles = {}
    for group in range(12):
        tensors = [torch.full((3,), float(group * 10 + place)) for place in range(group % 4 + 1)]
        handles[group] = hvd.grouped_allreduce_async(tensors, name=f"group {group}", op=hvd.Sum)
    for group in reversed(range(12)):
        results = hvd.synchronize(handles[group])
        expected = [[world.size * (group * 10 + place)] * 3 for place in range(group % 4 + 1)]
        assert [result.tolist() for result in results] == expected


@with_peers_on_shm
def test_a_group_is_done_when_it_is_there_on_all_ranks(world: World) -> None:
    # Rank 0 has one more than the others, so its members must not be matched one by one.
    tensors = [torch.ones(2), torch.ones(3)]
    if world.rank == 0:
        handle = hvd.grouped_allreduce_async(tensors, name="group", op=hvd.Sum)
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.grouped_allreduce_async(tensors, name="group", op=hvd.Sum)
    results = hvd.synchronize(handle)
    assert [result.tolist() for result in results] == [[world.size] * 2, [world.size] * 3]


@on_shm
def test_one_tensor_is_a_group_too(world: World) -> None:
    assert [x.tolist() for x in hvd.grouped_allreduce([torch.ones(2)])] == [[1.0, 1.0]]
    (result,) = hvd.grouped_allgather([torch.ones(1)])
    assert result.tolist() == [1.0] * world.size


@on_shm
def test_large_groups(world: World) -> None:
    tensors = [torch.full((1000,), float(place)) for place in range(300)]
    hvd.grouped_allreduce_(tensors, name="many", op=hvd.Sum)
    assert [tensor[999].item() for tensor in tensors] == [world.size * i for i in range(300)]
    big = [given("float32", "sum", world.rank, count) for count in (400_000, 3, 250_001)]
    results = hvd.grouped_allreduce(big, op=hvd.Sum)
    for result in results:
        assert same(result, reduced("float32", "sum", range(world.size), result.numel()))
