"""reducescatter: the sum or average of all, of which every rank gets some rows."""

from __future__ import annotations

import torch
from exact import same
from hvd_model import DTYPE_NAMES, OPS, given, ops_of, reduced, share
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World


@everywhere
def test_every_dtype_and_number_of_rows(world: World) -> None:
    size, rank = world.size, world.rank
    for rows in (12, 7, 1, 0):
        cases = [
            (name, op) for name in DTYPE_NAMES for op in ("average", "sum") if op in ops_of(name)
        ]
        tensors = [given(name, op, rank, rows, 3) for name, op in cases]
        handles = [
            hvd.reducescatter_async(tensor, name=f"{name}.{op}", op=OPS[op])
            for (name, op), tensor in zip(cases, tensors, strict=True)
        ]
        for (name, op), tensor, handle in zip(cases, tensors, handles, strict=True):
            mine = reduced(name, op, range(size), rows, 3)[share(rows, size, rank)]
            assert same(hvd.synchronize(handle), mine), (name, op, rows)
            assert same(tensor, given(name, op, rank, rows, 3)), (name, op, "the input")


@everywhere
def test_blocking_form_and_its_default(world: World) -> None:
    size, rank = world.size, world.rank
    for rows in (size * 2, size * 2 + 1, 3 * size - 1):
        mine = share(rows, size, rank)
        tensor = given("float32", "average", rank, rows, 2, 2)
        total = reduced("float32", "average", range(size), rows, 2, 2)
        assert same(hvd.reducescatter(tensor), total[mine])
        tensor = given("float32", "sum", rank, rows)
        total = reduced("float32", "sum", range(size), rows)
        assert same(hvd.reducescatter(tensor, op=hvd.Sum), total[mine])


@on_shm
def test_the_parts_make_up_the_whole(world: World) -> None:
    for rows in range(2 * world.size + 2):
        tensor = given("int32", "sum", world.rank, rows, 2)
        part = hvd.reducescatter(tensor, op=hvd.Sum, name="part")
        whole = hvd.allgather(part, name="whole")
        assert same(whole, reduced("int32", "sum", range(world.size), rows, 2)), rows


@on_shm
def test_scaled(world: World) -> None:
    size, rank = world.size, world.rank
    for name in ("float16", "float64", "int32", "complex64"):
        for op, prescale, postscale in (("sum", 2.0, 0.5), ("average", 0.5, 4.0)):
            tensor = given(name, op, rank, 5, 2)
            result = hvd.reducescatter(
                tensor, op=OPS[op], prescale_factor=prescale, postscale_factor=postscale
            )
            whole = reduced(name, op, range(size), 5, 2, prescale=prescale, postscale=postscale)
            assert same(result, whole[share(5, size, rank)]), (name, op)


@on_shm
def test_averages_of_integers_are_truncated_toward_zero(world: World) -> None:
    totals = list(range(-12, 13))
    tensor = torch.tensor(totals if world.rank == 0 else [0] * 25)
    quotients = [int(abs(total) // world.size) * (1 if total > 0 else -1) for total in totals]
    result = hvd.reducescatter(tensor)
    assert result.tolist() == quotients[share(25, world.size, world.rank)]


@on_shm
def test_a_large_tensor_with_a_prescale(world: World) -> None:
    """Horovod refuses a prescale where the tensor does not fit its fusion buffer."""
    size, rank = world.size, world.rank
    tensor = given("float32", "sum", rank, 100_003, 5)
    result = hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=0.5)
    whole = reduced("float32", "sum", range(size), 100_003, 5, prescale=0.5)
    assert same(result, whole[share(100_003, size, rank)])
