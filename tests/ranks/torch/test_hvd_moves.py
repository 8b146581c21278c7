"""Allgather and broadcast: whole tensors that are moved, not changed."""

from __future__ import annotations

import torch
from exact import same
from hvd_model import DTYPE_NAMES, gathered, given, rows_of
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World


@everywhere
def test_allgather_every_dtype_with_uneven_rows(world: World) -> None:
    rows = [rows_of(rank) for rank in range(world.size)]
    for trailing in ((), (3,), (2, 1, 4)):
        handles = [
            hvd.allgather_async(
                given(name, "sum", world.rank, rows[world.rank], *trailing), name=name
            )
            for name in DTYPE_NAMES
        ]
        for name, handle in zip(DTYPE_NAMES, handles, strict=True):
            expected = gathered(name, range(world.size), rows, *trailing)
            assert same(hvd.synchronize(handle), expected), (name, trailing)


@everywhere
def test_allgather_blocking(world: World) -> None:
    for name in ("float32", "bool", "bfloat16"):
        mine = given(name, "sum", world.rank, 2, 3)
        result = hvd.allgather(mine)
        assert same(result, gathered(name, range(world.size), [2] * world.size, 3)), name
        assert result.data_ptr() != mine.data_ptr()
    # Only the last rank, and then nobody, has rows.
    rows = [0] * (world.size - 1) + [5]
    result = hvd.allgather(given("int32", "sum", world.rank, rows[world.rank], 2), name="last")
    assert same(result, gathered("int32", range(world.size), rows, 2))
    assert hvd.allgather(torch.zeros(0, 7), name="nobody").shape == (0, 7)


@on_shm
def test_allgather_rows_that_change_from_step_to_step(world: World) -> None:
    """Seen before, a name is quick to match; how many rows come under it must not be remembered."""
    for step in range(6):
        rows = [(rank + step) % 4 for rank in range(world.size)]
        result = hvd.allgather(given("float32", "sum", world.rank, rows[world.rank], 2), name="x")
        assert same(result, gathered("float32", range(world.size), rows, 2)), step


@on_shm
def test_allgather_of_large_parts(world: World) -> None:
    rows = [100_000 * (rank + 1) for rank in range(world.size)]
    result = hvd.allgather(given("float64", "sum", world.rank, rows[world.rank]))
    assert same(result, gathered("float64", range(world.size), rows))


@everywhere
def test_broadcast_every_dtype_from_every_root(world: World) -> None:
    for root in range(world.size):
        cases = [(name, shape) for name in DTYPE_NAMES for shape in ((), (11,), (2, 3))]
        tensors = [given(name, "max", world.rank, *shape) for name, shape in cases]
        handles = [
            hvd.broadcast_async(tensor, root, name=f"{name}{shape}")
            for (name, shape), tensor in zip(cases, tensors, strict=True)
        ]
        for (name, shape), tensor, handle in zip(cases, tensors, handles, strict=True):
            expected = given(name, "max", root, *shape)
            assert same(hvd.synchronize(handle), expected), (name, shape, root)
            assert same(tensor, given(name, "max", world.rank, *shape)), (name, "the input")


@everywhere
def test_broadcast_in_place_from_every_root(world: World) -> None:
    for root in range(world.size):
        tensors = [given(name, "max", world.rank, 4, 2) for name in DTYPE_NAMES]
        handles = [
            hvd.broadcast_async_(tensor, root, name=name)
            for name, tensor in zip(DTYPE_NAMES, tensors, strict=True)
        ]
        for name, tensor, handle in zip(DTYPE_NAMES, tensors, handles, strict=True):
            assert hvd.synchronize(handle) is tensor
            assert same(tensor, given(name, "max", root, 4, 2)), (name, root)
        tensor = torch.full((3,), float(world.rank))
        assert hvd.broadcast_(tensor, root) is tensor
        assert tensor.tolist() == [root] * 3
        result = hvd.broadcast(torch.full((3,), world.rank), root_rank=root)
        assert result.tolist() == [root] * 3


@on_shm
def test_broadcast_of_a_large_tensor(world: World) -> None:
    root = world.size - 1
    tensor = given("float32", "max", world.rank, 700_001)
    hvd.broadcast_(tensor, root)
    assert same(tensor, given("float32", "max", root, 700_001))


@on_shm
def test_nan_payloads_and_negative_zeros_are_moved_bit_by_bit(world: World) -> None:
    bits = torch.tensor([0x7FC12345, -0x80000000, 0x7F812345, 1], dtype=torch.int32)
    floats = bits.view(torch.float32)
    other = floats if world.rank == 0 else torch.zeros(4)
    assert torch.equal(hvd.broadcast(other, 0).view(torch.int32), bits)
    assert torch.equal(hvd.allgather(floats)[-4:].view(torch.int32), bits)
    assert torch.equal(hvd.alltoall(floats.repeat(world.size))[:4].view(torch.int32), bits)
