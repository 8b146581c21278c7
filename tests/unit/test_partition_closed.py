"""Partitions of a world of one, and what is left of them when it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kadril import ops
from kadril.errors import ClosedError, NotInitializedError
from kadril.partition import world_partition
from kadril.world.world import World, open_local


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world of this process alone."""
    return open_local(0, 1, str(tmp_path / "door"), bytes(32), job="alone")


def test_alone(world: World) -> None:
    """All primitives work on one worker; nothing moves."""
    one = world_partition(world).create_cartesian_topology_partition([1, 1])
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    assert ops.repartition(x, one, one).tolist() == x.tolist()
    y = ops.halo_exchange(x, one, [(1, 0), (0, 1)], edges=["circular", "zeros"])
    assert y.tolist() == [[3, 4, 5, 0], [0, 1, 2, 0], [3, 4, 5, 0]]
    for each in (
        ops.all_sum_reduce(x, one, (0, 1)),
        ops.all_gather(x, one, (0, 1)),
        ops.reduce_scatter(x, one, (0,)),
        ops.all_to_all(x, one, 0, 0, 1),
        ops.scatter(x, one),
        ops.gather(x, one),
        ops.broadcast(x, one, one),
        ops.all_max_reduce(x, one, (0,)),
    ):
        assert torch.equal(each, x)
        assert each.data_ptr() != x.data_ptr(), "a copy, also where nothing moves"
        x.grad = None
        each.backward(torch.ones_like(x))
        assert torch.equal(x.grad, torch.ones(2, 3))  # type: ignore[arg-type]
    world.close()


def test_closed(world: World) -> None:
    one = world_partition(world)
    world.close()
    with pytest.raises(ClosedError, match="was closed"):
        world_partition(world)
    with pytest.raises(ClosedError, match="make a new one"):
        one.create_partition_inclusive([0])
    with pytest.raises(ClosedError, match="make a new one"):
        one.axis_group([0])


def test_without_a_world() -> None:
    # Whether this process had one before depends on the tests that ran earlier.
    with pytest.raises((NotInitializedError, ClosedError)):
        world_partition()
