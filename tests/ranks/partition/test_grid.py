"""`kadril.grid`: the ranks of the world on a Cartesian shape."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import kadril
from kadril.partition import world_partition
from kadril.testing import ranks
from kadril.world import World


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what kadril logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("kadril")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@ranks(4)
def test_a_grid_of_all_ranks(world: World) -> None:
    P = kadril.grid(1, 1, 2, 2)
    everyone = world_partition(world)
    assert everyone.create_cartesian_topology_partition([1, 1, 2, 2]) == P
    assert (P.shape, P.index) == ((1, 1, 2, 2), (0, 0, world.rank // 2, world.rank % 2))


@ranks(3)
def test_more_ranks_than_cells(world: World) -> None:
    """The first ranks get the cells, the others hold the partition without a cell."""
    with logged() as lines:
        P = kadril.grid(2, 1)
    assert P.ranks == (0, 1)
    assert P.active == (world.rank < 2)
    assert P.index == ((world.rank, 0) if world.rank < 2 else None)
    said = "grid(2, 1) has 2 x 1 = 2 cells for 3 ranks: the last 1 are inactive in it"
    assert lines == ([said] if world.rank == 0 else [])
    # A layer on it works on all ranks: those without a cell give a tensor without elements.
    layer = kadril.nn.Linear(P, 2, 2)
    x = torch.ones(2, 2) if P.active else kadril.ops.zero_volume_tensor()
    assert layer(x).numel() == (4 if P.active else 0)


@ranks(2)
def test_more_cells_than_ranks(world: World) -> None:
    with pytest.raises(
        ValueError, match=r"grid\(1, 1, 3, 2\) needs 1 x 1 x 3 x 2 = 6 ranks, and this world has 2"
    ):
        kadril.grid(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"kadril run -np 5"):
        kadril.grid(5)


@ranks(1)
def test_what_is_no_grid(world: World) -> None:
    for lengths in ((), (0,), (1, -1)):
        with pytest.raises(ValueError, match="a length of at least 1"):
            kadril.grid(*lengths)
    with pytest.raises(TypeError, match=r"such as grid\(1, 1, 2, 2\); got list"):
        kadril.grid([1, 1])  # type: ignore[arg-type]
