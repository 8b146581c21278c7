"""Horovod's process sets and partitions: the same ranks under two names."""

from __future__ import annotations

import pytest
import torch

import kadril.torch as hvd
from kadril import ops
from kadril.partition import world_partition
from kadril.testing import ranks
from kadril.world import World


@ranks(3, transports=["shm", "c10d", "mpi:openmpi"])
def test_there_and_back(world: World) -> None:
    hvd.init()
    try:
        everyone = world_partition()
        P = everyone.create_partition_inclusive([2, 0]).create_cartesian_topology_partition([2, 1])
        chosen = hvd.add_process_set(P)
        assert chosen.ranks == [0, 2]
        assert chosen.included() == P.active
        back = everyone.create_partition_inclusive(chosen)
        assert (back.ranks, back.active) == ((0, 2), P.active)
        assert everyone.create_partition_inclusive(hvd.global_process_set) == everyone
        if P.active:
            ones = torch.ones(2)
            assert hvd.allreduce(ones, op=hvd.Sum, process_set=chosen).tolist() == [2.0, 2.0]
            assert ops.all_sum_reduce(ones, back, (0,)).tolist() == [2.0, 2.0]
        with pytest.raises(ValueError, match="has no ranks"):
            back.create_partition_inclusive(hvd.ProcessSet([0, 1]))
        with pytest.raises(ValueError, match="does not know its ranks"):
            everyone.create_partition_inclusive(hvd.ProcessSet())
    finally:
        hvd.shutdown()


@ranks(2)
def test_sets_made_from_partitions_before_init(world: World) -> None:
    P = world_partition(world).create_partition_inclusive([1])
    chosen = hvd.ProcessSet(P)
    assert chosen.ranks == [1]
    hvd.init(process_sets=[chosen])
    try:
        assert chosen.included() == P.active
    finally:
        hvd.shutdown()
