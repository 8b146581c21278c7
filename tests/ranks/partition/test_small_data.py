"""Small arrays between the workers of a partition."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from kadril.partition import world_partition
from kadril.testing import ranks
from kadril.world import World

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]


@ranks(1, 3, transports=TRANSPORTS)
def test_an_array_of_one_worker_for_all(world: World) -> None:
    P, last = world_partition(world), world.size - 1
    for array in (
        np.arange(6).reshape(2, 3),
        np.array(2.5),
        np.zeros((0, 4), dtype=np.float32),
        np.array([True, False]),
        np.arange(8, dtype=np.complex128)[::2],
        np.broadcast_to(np.int8(3), (2, 2)),  # read-only, and of one element in memory
    ):
        got = P.broadcast_data(array if world.rank == last else None, root=last)
        assert got is not None
        assert (got.shape, got.dtype) == (array.shape, array.dtype)
        assert np.array_equal(got, array)
    got = P.broadcast_data([1, 2] if world.rank == 0 else None)
    assert got is not None
    assert got.tolist() == [1, 2]


@ranks(3, transports=TRANSPORTS)
def test_from_a_part_of_the_partition(world: World) -> None:
    everyone = world_partition(world)
    some = everyone.create_partition_inclusive([2, 0])
    array = np.array([world.rank])
    got = everyone.broadcast_data(array, P_data=some)
    assert got is not None
    assert got.tolist() == [2]
    got = everyone.broadcast_data(array, root=1, P_data=some)
    assert got is not None
    assert got.tolist() == [0]
    got = some.broadcast_data(array)
    assert got is None if world.rank == 1 else got is not None
    with pytest.raises(ValueError, match="rank 1 of"):
        some.broadcast_data(array, root=1, P_data=everyone)


@ranks(3)
def test_nothing_to_give_is_told_to_all(world: World) -> None:
    P = world_partition(world)
    for data in (None, np.array(["text"]), np.array([object()]), np.zeros([1] * 17)):
        with pytest.raises(ValueError, match="rank 0 must give an array of numbers"):
            P.broadcast_data(data)
    with pytest.raises(ValueError, match="rank 3 of"):
        P.broadcast_data(np.zeros(1), root=3)
    got = P.broadcast_data(np.ones(1))
    assert got is not None
    assert got.tolist() == [1.0]


@ranks(3, transports=TRANSPORTS)
def test_arrays_of_all_workers(world: World) -> None:
    P = world_partition(world)
    mine = np.full((world.rank, 2), world.rank)
    assert P.allgather_data(mine).tolist() == [1, 1, 2, 2, 2, 2]
    assert P.allgather_data(world.rank).tolist() == [0, 1, 2]
    values = np.array([world.rank + 1, -world.rank])
    for op, expected in {"sum": [6, -3], "prod": [6, 0], "min": [1, -2], "max": [3, 0]}.items():
        assert P.allreduce_data(values, op=op).tolist() == expected
    assert values.tolist() == [world.rank + 1, -world.rank]
    with pytest.raises(ValueError, match="sum, prod, min, max"):
        P.allreduce_data(values, op="mean")


@ranks(3)
def test_lines_in_the_order_of_the_workers(world: World, tmp_path: Path) -> None:
    everyone = world_partition(world)
    P = everyone.create_partition_inclusive([2, 0])
    path = tmp_path / "lines"
    with path.open("a") as file, contextlib.redirect_stdout(file):
        P.print_sequential(f"world rank {world.rank}")  # rank 1 is not in it, and does not wait
    everyone.transport.barrier()
    assert path.read_text() == "rank 0: world rank 2\nrank 1: world rank 0\n"
