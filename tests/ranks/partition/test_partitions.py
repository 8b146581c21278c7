"""Partitions: who is in them, their shapes and neighbours, on every transport."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from kadril.errors import ClosedError, StateError
from kadril.partition import Partition, world_partition
from kadril.testing import ranks
from kadril.world import World

TRANSPORTS = ["shm", "c10d", "mpi:openmpi"]


def total_of(P: Partition) -> list[int]:
    """World ranks of its workers, in their order, as they tell them over their transport."""
    mine, everyones = torch.tensor([P.root.ranks[P.root.transport.rank]]), torch.zeros(P.size)
    everyones = everyones.to(torch.int64)
    P.transport.allgatherv(mine, everyones, [1] * P.size)
    return everyones.tolist()


@ranks(1, 4, transports=TRANSPORTS)
def test_the_partition_of_all_ranks(world: World) -> None:
    P = world_partition(world)
    assert P.active
    assert (P.rank, P.size, P.dim, P.shape) == (world.rank, world.size, 1, (world.size,))
    assert P.index == (world.rank,)
    assert P.ranks == tuple(range(world.size))
    assert total_of(P) == list(range(world.size))
    assert world_partition(world) == P


@ranks(4, transports=TRANSPORTS)
def test_some_ranks_in_any_order(world: World) -> None:
    P = world_partition(world).create_partition_inclusive([3, 0, 2])
    assert (P.ranks, P.size, P.shape) == ((3, 0, 2), 3, (3,))
    if world.rank == 1:
        assert (P.active, P.rank, P.index) == (False, -1, None)
        with pytest.raises(StateError, match="not in the partition"):
            _ = P.transport
        assert "inactive here" in repr(P)
    else:
        assert (P.active, P.rank) == (True, [3, 0, 2].index(world.rank))
        assert total_of(P) == [3, 0, 2]
    # Ranks are those of the partition it is made of; an inactive worker may ask as well.
    inner = P.create_partition_inclusive([2, 0])
    assert inner.ranks == (2, 3)
    assert inner.active == (world.rank in (2, 3))
    if inner.active:
        assert total_of(inner) == [2, 3]


@ranks(4, transports=TRANSPORTS)
def test_unions_keep_the_first_order(world: World) -> None:
    everyone = world_partition(world)
    one, other = (everyone.create_partition_inclusive(ranks) for ranks in ([2, 0], [0, 3]))
    union = one.create_partition_union(other)
    assert union.ranks == (2, 0, 3)
    assert union.active == (world.rank != 1)
    if union.active:
        assert total_of(union) == [2, 0, 3]
    assert one.create_partition_union(one) == one
    assert other.create_partition_union(one).ranks == (0, 3, 2)


@ranks(4, transports=TRANSPORTS)
def test_shapes_and_lines_through_a_worker(world: World) -> None:
    P = world_partition(world).create_cartesian_topology_partition([2, 1, 2])
    assert (P.shape, P.dim, P.index) == ((2, 1, 2), 3, (world.rank // 2, 0, world.rank % 2))
    row, column = world.rank // 2, world.rank % 2
    along_last = P.create_cartesian_subtopology_partition([False, False, True])
    assert along_last.ranks == (2 * row, 2 * row + 1)
    assert (along_last.shape, along_last.index) == ((2,), (column,))
    assert total_of(along_last) == [2 * row, 2 * row + 1]
    along_first = P.create_allreduction_partition([0])
    assert along_first.ranks == (column, 2 + column)
    assert P.create_allreduction_partition([-3]) == along_first
    assert total_of(P.create_allreduction_partition([0, 2])) == [0, 1, 2, 3]
    alone = P.create_allreduction_partition([])
    assert (alone.ranks, alone.shape) == ((world.rank,), (1,))
    fewer = world_partition(world).create_cartesian_topology_partition([3])
    assert fewer.active == (world.rank < 3)
    assert fewer.shape == (3,)
    line = fewer.create_cartesian_subtopology_partition([True])
    assert (line.active, line.shape) == (fewer.active, (3,))


@ranks(1)
def test_places_and_neighbours(world: World) -> None:
    """Arithmetic alone: also where this rank is not in the partition."""
    root = world_partition(world).root
    P = Partition(root, None, range(12), (2, 2, 3))
    assert [P.cartesian_index(rank) for rank in range(12)] == list(P.indices())
    assert [P.cartesian_rank(index) for index in P.indices()] == list(range(12))
    assert P.cartesian_index(7) == (1, 0, 1)
    assert P.neighbor_ranks(7) == [(1, -1), (-1, 10), (6, 8)]
    assert P.neighbor_ranks(0) == [(-1, 6), (-1, 3), (-1, 1)]
    for rank in (-1, 12):
        with pytest.raises(ValueError, match=f"no rank {rank}"):
            P.cartesian_index(rank)
        with pytest.raises(ValueError, match=f"no rank {rank}"):
            P.neighbor_ranks(rank)
    for index in ((2, 0, 0), (0, 0), (0, -1, 0)):
        with pytest.raises(ValueError, match="no position"):
            P.cartesian_rank(index)


@ranks(4, transports=TRANSPORTS)
def test_whom_a_broadcast_goes_to(world: World) -> None:
    """The giver is rank 0 of its group; the same groups serve a reduction the other way round."""
    everyone, rank = world_partition(world), world.rank
    few = everyone.create_partition_inclusive([3, 1]).create_cartesian_topology_partition([1, 2])
    lots = everyone.create_cartesian_topology_partition([2, 2])
    sender, receiver = few.create_broadcast_partition_to(lots)
    # 3 stands for the first column, ranks 0 and 2; 1 for the second one, ranks 1 and 3.
    assert sender.active == few.active
    if rank == 3:
        assert sender.ranks == (3, 0, 2)
        assert sender.rank == 0
    assert receiver.ranks == ((3, 0, 2) if rank in (0, 2) else (1, 3))
    for each in (sender, receiver):
        if each.active:
            assert each.transport.world_ranks == each.ranks
    givers, takers = lots.create_reduction_partition_to(few)
    assert (givers, takers) == (receiver, sender)
    # Axes in reverse order: 3 stands for the first row, ranks 0 and 1.
    sender, receiver = few.create_broadcast_partition_to(lots, transpose_dest=True)
    assert receiver.ranks == ((3, 0, 1) if rank in (0, 1) else (1, 2, 3))
    sender, receiver = few.create_broadcast_partition_to(lots, True, False)
    assert receiver.ranks == ((3, 0, 1) if rank in (0, 1) else (1, 2, 3))
    with pytest.raises(ValueError, match="1 x 2 cannot stand for one of shape 4"):
        few.create_broadcast_partition_to(everyone)


@ranks(3, transports=TRANSPORTS)
def test_deactivated(world: World) -> None:
    P = world_partition(world).create_cartesian_topology_partition([3])
    P.axis_group([0])
    same = world_partition(world).create_cartesian_topology_partition([3])
    P.deactivate()
    assert (P.active, P.rank, P.index) == (False, -1, None)
    assert P.shape == (3,)
    with pytest.raises(StateError):
        P.axis_group([0])
    P.deactivate()
    assert total_of(same) == [0, 1, 2], "others of the same ranks go on"


@ranks(2)
def test_equal_partitions(world: World) -> None:
    everyone = world_partition(world)
    P = everyone.create_cartesian_topology_partition([2, 1])
    assert everyone.create_cartesian_topology_partition([2, 1]) == P
    assert hash(P) == hash(everyone.create_cartesian_topology_partition([2, 1]))
    assert everyone.create_cartesian_topology_partition([1, 2]) != P
    assert everyone != P
    assert everyone != everyone.create_partition_inclusive([1, 0])
    assert P != "a partition"
    # Known without a message, and the same on ranks that are not in it.
    assert everyone.create_partition_inclusive([0]) == everyone.create_partition_inclusive([0])


@ranks(4, transports=TRANSPORTS)
def test_a_thousand_partitions_need_few_groups(world: World) -> None:
    everyone = world_partition(world)
    for _ in range(250):
        P = everyone.create_partition_inclusive([3, 2, 1, 0])
        P = P.create_cartesian_topology_partition([2, 2])
        P.create_allreduction_partition([0])
        P.create_allreduction_partition([1]).create_partition_union(everyone)
    groups = {each for each in everyone.root._made.values() if each is not None}
    assert len(groups) <= 20
    assert total_of(P) == [3, 2, 1, 0]


@ranks(2)
def test_what_cannot_be(world: World) -> None:
    everyone = world_partition(world)
    for ranks_asked in ([2], [-1], [0, 0], []):
        with pytest.raises(ValueError):
            everyone.create_partition_inclusive(ranks_asked)
    with pytest.raises(TypeError):
        everyone.create_partition_inclusive([0.5])  # type: ignore[list-item]
    for shape in ([3], [0], [2, 2], [-1, -2]):
        with pytest.raises(ValueError, match="2 workers cannot be arranged"):
            everyone.create_cartesian_topology_partition(shape)
    with pytest.raises(ValueError, match="no axis 1"):
        everyone.create_allreduction_partition([1])
    with pytest.raises(ValueError, match="has 1 axes"):
        everyone.create_cartesian_subtopology_partition([True, False])


@ranks(2, transports=TRANSPORTS)
def test_a_world_that_was_closed(world: World) -> None:
    """A partition outlives its world only as a name."""
    P = world_partition(world).create_cartesian_topology_partition([2])
    alone = world_partition(world).create_partition_inclusive([world.rank])
    column = P.axis_group([0])
    world.close_dependents()
    with pytest.raises(ClosedError, match="world that was closed"):
        P.create_partition_inclusive([0])
    with pytest.raises(ClosedError, match="world that was closed"):
        alone.create_cartesian_topology_partition([1])
    with pytest.raises(ClosedError):
        alone.transport.barrier()
    assert P.ranks == (0, 1)
    assert column is P.axis_group([0])
    again = world_partition(world)
    assert again != world_partition(world).create_partition_inclusive([0])
    with pytest.raises(ValueError, match="different worlds"):
        again.create_partition_union(P)
    assert total_of(again) == [0, 1]


@ranks(2)
def test_copies_of_models_share_partitions(world: World) -> None:
    P = world_partition(world).create_cartesian_topology_partition([2])
    assert copy.deepcopy(P) is P
    assert copy.copy(P) == P
    assert copy.deepcopy({"group": P.group})["group"] is P.group
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        pickle.dumps(P)
