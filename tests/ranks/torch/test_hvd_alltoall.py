"""alltoall: rank r sends its s-th part of dim 0 to rank s."""

from __future__ import annotations

import random

import numpy as np
import torch
from exact import as_dtype, same
from hvd_model import DTYPE_NAMES, values_of
from hvd_stage import everywhere, on_shm, with_peers

import kadril.torch as hvd
from kadril.world import World

Table = list[list[int]]  # table[r][s]: rows that rank r sends to rank s


def tables(size: int) -> list[Table]:
    """Even, uneven, with zeros, to one only, from one only, to oneself only, nothing at all."""
    return [
        [[2] * size for _ in range(size)],
        [[(3 * r + s) % 4 for s in range(size)] for r in range(size)],
        [[3 if s == 0 else 0 for s in range(size)] for _ in range(size)],
        [[s + 1 if r == size - 1 else 0 for s in range(size)] for r in range(size)],
        [[5 if r == s else 0 for s in range(size)] for r in range(size)],
        [[0] * size for _ in range(size)],
    ]


def sent(name: str, table: Table, rank: int, width: int) -> torch.Tensor:
    """Return all that a rank sends."""
    rows = sum(table[rank])
    return as_dtype(values_of(name, "max", rank, rows * width).reshape(rows, width), name)


def received(name: str, table: Table, rank: int, width: int) -> torch.Tensor:
    """Return what a rank gets: a part of each, in rank order."""
    parts = []
    for source, splits in enumerate(table):
        begin = sum(splits[:rank])
        rows = values_of(name, "max", source, sum(splits) * width).reshape(-1, width)
        parts.append(rows[begin : begin + splits[rank]])
    return as_dtype(np.concatenate(parts), name)


@everywhere
def test_every_dtype_and_table(world: World) -> None:
    rank, size = world.rank, world.size
    for table in tables(size):
        handles = [
            hvd.alltoall_async(sent(name, table, rank, 3), splits=table[rank], name=name)
            for name in DTYPE_NAMES
        ]
        for name, handle in zip(DTYPE_NAMES, handles, strict=True):
            result, splits = hvd.synchronize(handle)
            assert same(result, received(name, table, rank, 3)), (name, table)
            assert splits.tolist() == [row[rank] for row in table], (name, table)


@everywhere
def test_without_splits_the_parts_are_equal(world: World) -> None:
    rank, size = world.rank, world.size
    for each in (0, 1, 3):
        table = [[each] * size for _ in range(size)]
        result = hvd.alltoall(sent("float32", table, rank, 2))
        assert isinstance(result, torch.Tensor)
        assert same(result, received("float32", table, rank, 2))
        # The async form gives the pair also where no splits were given.
        result, splits = hvd.synchronize(hvd.alltoall_async(sent("float32", table, rank, 2)))
        assert same(result, received("float32", table, rank, 2))
        assert splits.tolist() == [each] * size


@everywhere
def test_blocking_with_splits_gives_the_pair(world: World) -> None:
    rank, size = world.rank, world.size
    table = tables(size)[1]
    tensor = sent("int64", table, rank, 2)
    as_list = table[rank]
    for splits in (as_list, torch.tensor(as_list, dtype=torch.int32)):
        result, received_splits = hvd.alltoall(tensor, splits)
        assert same(result, received("int64", table, rank, 2))
        assert isinstance(received_splits, torch.Tensor)
        assert received_splits.dtype == torch.int32
        assert received_splits.tolist() == [row[rank] for row in table]
    assert same(tensor, sent("int64", table, rank, 2))


@with_peers
def test_ranks_with_and_without_splits(world: World) -> None:
    """Rank 0 leaves the split to the op, the others spell out an uneven one."""
    rank, size = world.rank, world.size
    table = [[2] * size, *([[r + s for s in range(size)] for r in range(1, size)])]
    tensor = sent("float32", table, rank, 1)
    if rank == 0:
        result = hvd.alltoall(tensor, name="mixed")
    else:
        result, splits = hvd.alltoall(tensor, table[rank], name="mixed")
        assert splits.tolist() == [row[rank] for row in table]
    assert same(result, received("float32", table, rank, 1))


@on_shm
def test_splits_that_change_from_step_to_step(world: World) -> None:
    dice = random.Random(7)  # the same on all ranks
    for step in range(8):
        table = [[dice.randrange(5) for _ in range(world.size)] for _ in range(world.size)]
        tensor = sent("float64", table, world.rank, 2)
        result, splits = hvd.alltoall(tensor, table[world.rank], name="same name")
        assert same(result, received("float64", table, world.rank, 2)), step
        assert splits.tolist() == [row[world.rank] for row in table], step


@on_shm
def test_one_dimension_and_many(world: World) -> None:
    size, rank = world.size, world.rank
    result = hvd.alltoall(torch.arange(size) + 10 * rank)
    assert result.tolist() == [10 * source + rank for source in range(size)]
    result, _ = hvd.alltoall(torch.full((size, 2, 1, 3), rank), [1] * size)
    assert result.shape == (size, 2, 1, 3)
    assert result[:, 0, 0, 0].tolist() == list(range(size))


@on_shm
def test_large_parts(world: World) -> None:
    table = [[40_000 * (r + 1) + s for s in range(world.size)] for r in range(world.size)]
    result, _ = hvd.alltoall(sent("float32", table, world.rank, 2), table[world.rank])
    assert same(result, received("float32", table, world.rank, 2))
