"""Particulars of tiers: layouts, chunks, groups, who is named when somebody is lost.

Hosts are told apart by labels here, so all of them are this one. The conformance tests run over
tiers too.
"""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
import torch
from conformance import offsets
from death_kit import allreduce_for_ever, check_survivors, wait_for_rank

from kadril.errors import PeerLost, Stalled
from kadril.testing import Ranks, ranks
from kadril.transport.base import Transport
from kadril.transport.call import Call
from kadril.transport.ending import Ending
from kadril.transport.tiers.tiered import TieredTransport
from kadril.world import World


def tiers_of(world: World, chunk_bytes: int) -> TieredTransport:
    assert isinstance(world.transport, TieredTransport)
    world.transport.chunk_bytes = chunk_bytes
    return world.transport


def numbers(rank: int, count: int) -> torch.Tensor:
    """Integers of a rank that add up exactly, different at each place."""
    return torch.arange(count, dtype=torch.int64) * (rank + 1) + rank


def check_all_collectives(world: World, count: int, chunk_bytes: int) -> None:
    """Every collective, in chunks, against what one process computes."""
    transport, size = tiers_of(world, chunk_bytes), world.size
    given = [numbers(rank, count) for rank in range(size)]
    total = torch.stack(given).sum(0)
    array = given[world.rank].clone()
    transport.allreduce(array)
    assert torch.equal(array, total)
    for root in range(size):
        array, out = given[world.rank].clone(), torch.zeros(count, dtype=torch.int64)
        transport.reduce(array, root, out=out)
        assert torch.equal(out, total if world.rank == root else torch.zeros_like(out))
        assert torch.equal(array, given[world.rank])
        transport.broadcast(array, root)
        assert torch.equal(array, given[root])
    counts = [0 if rank == 1 else count // size + 7 * rank for rank in range(size)]
    begin, end = offsets(counts)[world.rank : world.rank + 2]
    everything = torch.empty(sum(counts), dtype=torch.int64)
    transport.allgatherv(numbers(world.rank, counts[world.rank]), everything, counts)
    assert torch.equal(everything, torch.cat([numbers(r, n) for r, n in enumerate(counts)]))
    whole = [numbers(rank, sum(counts)) for rank in range(size)]
    mine = torch.empty(end - begin, dtype=torch.int64)
    transport.reduce_scatterv(whole[world.rank], mine, counts)
    assert torch.equal(mine, torch.stack(whole).sum(0)[begin:end])
    sends = [(world.rank + 2 * peer) % 5 * 11 for peer in range(size)]
    recvs = [(peer + 2 * world.rank) % 5 * 11 for peer in range(size)]
    came = torch.empty(sum(recvs), dtype=torch.int64)
    transport.alltoallv(numbers(world.rank, sum(sends)), sends, came, recvs)
    expected = [
        numbers(peer, 10**4)[at : at + n]
        for peer, n in enumerate(recvs)
        for at in [sum((peer + 2 * rank) % 5 * 11 for rank in range(world.rank))]
    ]
    assert torch.equal(came, torch.cat(expected))
    right, left = (world.rank + 1) % size, (world.rank - 1) % size
    halo = torch.empty(100, dtype=torch.int64)
    transport.exchange([(right, numbers(world.rank, 100))], [(left, halo)])
    assert torch.equal(halo, numbers(left, 100))


def wait_in_a_group_of_one_host(world: World) -> list[float]:
    """Rank 1 waits for rank 0; returns what its group tells of that."""
    told: list[float] = []
    pair = world.transport.split(0 if world.rank < 2 else None)
    if pair is not None:
        pair.on_late = lambda late, waited: told.append(waited)
        if world.rank == 0:
            time.sleep(0.5)  # five times as long as ranks of a host wait before a look outside
        pair.barrier()
    return told


def test_a_group_of_one_host_does_not_warn_early() -> None:
    """The group logged that rank 0 "has waited 0 s": it looked for other hosts, and has none."""
    with Ranks(3, transport="tiered", hosts="2+1") as ranks:
        outcomes = ranks.start(wait_in_a_group_of_one_host).wait(30.0)
    assert [outcome.value for outcome in outcomes] == [[]] * 3, outcomes


def check_sizes(world: World) -> None:
    # Below, at and above the sizes where another way is taken; with chunks of a few elements.
    for count, chunk_bytes in ((1, 1 << 20), (300, 1 << 20), (1_500, 1 << 20), (9_001, 30_000)):
        check_all_collectives(world, count, chunk_bytes)
    tiers_of(world, 1 << 20)


@ranks(5, transports=["tiered"], hosts="3+2")
def test_all_collectives_on_uneven_hosts(world: World) -> None:
    check_sizes(world)


@ranks(4, transports=["tiered"], hosts="2+2")
def test_all_collectives_on_contiguous_hosts(world: World) -> None:
    check_sizes(world)


@ranks(5, transports=["tiered"], hosts="round robin 3")
def test_all_collectives_on_hosts_that_ranks_were_dealt_to(world: World) -> None:
    check_sizes(world)


@pytest.mark.long
@ranks(6, transports=["tiered"], hosts="2+2+2", tiers="2x3")
def test_all_collectives_on_three_hosts(world: World) -> None:
    check_sizes(world)


@pytest.mark.long
@ranks(8, transports=["tiered"], hosts="2+2+2+2", tiers="2x2x2")
def test_all_collectives_on_racks_of_hosts(world: World) -> None:
    check_sizes(world)


@pytest.mark.long
@ranks(4, transports=["mpi:openmpi", "mpi:mpich"], transport="tiered:mpi", hosts="1+3")
def test_all_collectives_with_mpi_between_hosts(world: World) -> None:
    check_sizes(world)


@ranks(4, transports=["mpi:openmpi"], transport="tiered:mpi", hosts="round robin 2")
def test_tiers_with_mpi_between_hosts(world: World) -> None:
    check_all_collectives(world, 9_001, 30_000)


@ranks(5, transports=["tiered"], hosts="round robin 2")
def test_groups_of_one_host_share_memory_and_groups_across_do_not(world: World) -> None:
    host = world.transport.split(world.rank % 2)
    across = world.transport.split(world.rank // 2)
    mixed = world.transport.split(0 if world.rank < 3 else 1, key=-world.rank)
    assert host is not None
    assert across is not None
    assert mixed is not None
    assert host.kind == "shm"
    assert host.shared_memory is not None
    assert host.world_ranks == ((0, 2, 4) if world.rank % 2 == 0 else (1, 3))
    assert across.kind == ("c10d" if world.rank < 4 else "shm")  # rank 4 is alone there
    assert mixed.kind == ("tiered" if world.rank < 3 else "c10d")
    assert mixed.world_ranks == ((2, 1, 0) if world.rank < 3 else (4, 3))
    for group in (host, across, mixed):
        places = torch.zeros(group.size)
        places[group.rank] = world.rank
        group.allreduce(places)
        assert places.tolist() == list(group.world_ranks)
    world.transport.barrier()
    for group in (host, across, mixed):
        group.close()


@ranks(4, transports=["tiered"], hosts="2+2")
def test_capabilities_are_those_of_the_parts(world: World) -> None:
    transport = world.transport
    assert transport.kind == "tiered"
    assert transport.shared_memory is None  # not of all ranks
    assert transport.overlaps
    assert transport.takes_any_thread
    assert not transport.reaches_devices


@ranks(5, transports=["tiered"], hosts="3+2")
def test_tensors_in_the_memory_of_a_host(world: World) -> None:
    """Memory that the ranks of a host share is reduced in place; hosts differ, the sums do not."""
    transport = tiers_of(world, 30_000)
    memory = transport.host_memory
    assert memory is not None
    for count in (100, 40_000):
        array = world.shared_empty(count, torch.int64)
        assert memory.segment.contains(array.data_ptr(), count * 8)
        for _ in range(5):
            array.copy_(numbers(world.rank, count))
            transport.allreduce(array)
            expected = torch.stack([numbers(rank, count) for rank in range(5)]).sum(0)
            assert torch.equal(array, expected)
        transport.broadcast(array.copy_(numbers(world.rank, count)), 4)
        assert torch.equal(array, numbers(4, count))
    tiers_of(world, 1 << 20)


kept: list[Transport] = []


@ranks(5, transports=["tiered"], hosts="3+2", patience=0.5, stall_warning=0.2)
def test_a_late_rank_is_named_on_every_host(world: World) -> None:
    """The other host waited for the leader of rank 2, and must not say that it was late."""
    group = world.transport.split(0)
    assert group is not None
    kept.append(group)
    group.barrier()
    if world.rank == 2:
        return
    with pytest.raises(Stalled) as caught:
        group.allreduce(torch.zeros(5000), name="grad")
    assert (caught.value.rank, caught.value.operation, caught.value.name) == (
        2,
        "allreduce",
        "grad",
    )
    assert caught.value.elapsed < 5.0


@ranks(3, transports=["tiered"], hosts="2+1", patience=1.0, stall_warning=0.1)
def test_a_leader_that_is_late_is_told_of_before_patience_runs_out(world: World) -> None:
    """Leaders wait for each other in an exchange of packets, where gloo's group was silent.

    Rank 1 waits for its leader, and was held to be late itself.
    """
    group = world.transport.split(0)
    assert group is not None
    kept.append(group)
    told: list[tuple[int, ...]] = []
    group.on_late = lambda late, _: told.append(tuple(late))
    group.barrier()
    if world.rank == 2:
        return
    with pytest.raises(Stalled) as caught:
        group.allreduce(torch.zeros(5000))
    assert caught.value.rank == 2
    assert told == ([(2,)] if world.rank == 0 else [])


@ranks(4, transports=["tiered"], hosts="2+2")
def test_a_rank_that_waits_for_another_host_hears_what_its_own_says(world: World) -> None:
    """Rank 0 died, and the store with it; rank 1 had left and could tell nobody of another host.

    Rank 2 knew and had said so in the memory of its host, but rank 3 waited for rank 1 until its
    patience ran out, and named nobody.
    """
    group = tiers_of(world, 1 << 20).split(0)
    assert isinstance(group, TieredTransport)
    kept.append(group)
    if world.rank == 2:
        group._host_notes.leave(Ending("lost", group.num_completed, 0))
    if world.rank == 3:
        with pytest.raises(PeerLost) as caught, group._calling(Call("allreduce")):
            group.outer._exchange([], [(1, np.empty(8, dtype=np.uint8))])
        assert caught.value.rank == 0
    world.transport.barrier()


@pytest.mark.parametrize("count", [3, 3_000_000], ids=["meeting", "chunks"])
@pytest.mark.parametrize(
    ("victim", "hosts"),
    [
        (3, "2+2"),
        pytest.param(0, "2+2", marks=pytest.mark.long),  # the store goes with it
        pytest.param(2, "round robin 2", marks=pytest.mark.long),
        pytest.param(1, "3+1", marks=pytest.mark.long),
    ],
)
def test_a_dead_rank_is_named_on_every_host(victim: int, hosts: str, count: int) -> None:
    with Ranks(4, transport="tiered", patience=20.0, hosts=hosts) as started:
        started.start(allreduce_for_ever, count)
        started.wait_mark("running")
        started.signal(victim, signal.SIGKILL)
        check_survivors(started.wait(30.0), victim)


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_that_dies_while_it_is_waited_for(victim: int) -> None:
    with Ranks(4, transport="tiered", patience=20.0, hosts="2+2") as started:
        started.start(wait_for_rank, victim)
        started.wait_mark("running")
        started.signal(victim, signal.SIGKILL)
        check_survivors(started.wait(30.0), victim)
