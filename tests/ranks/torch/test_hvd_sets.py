"""Process sets: static and dynamic, overlapping, with progress of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hvd_stage import SHM, TRANSPORTS, check_works, grad_of, on_ranks, with_sets, with_sets_on_shm

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World


@ranks(2, 3, 4, transports=(*TRANSPORTS, "tiered"))
def test_static_sets(world: World) -> None:
    size, rank = world.size, world.rank
    first, rest = hvd.ProcessSet([0]), hvd.ProcessSet(list(range(1, size)))
    assert first.rank() is None, "asked before init"
    hvd.init(process_sets=[first, rest])
    try:
        mine, other = (first, rest) if rank == 0 else (rest, first)
        assert (mine.included(), other.included()) == (True, False)
        assert (first.size(), rest.size()) == (1, size - 1)
        assert (first.ranks, rest.ranks) == ([0], list(range(1, size)))
        assert mine.rank() == max(rank - 1, 0)
        with pytest.raises(ValueError):
            other.rank()
        assert len({0, first.process_set_id, rest.process_set_id}) == 3
        check_works("in my set", mine)
        check_works("of all")
        assert hvd.global_process_set.ranks == list(range(size))
        assert (hvd.global_process_set.rank(), hvd.global_process_set.size()) == (rank, size)
        assert hvd.global_process_set.included()
    finally:
        hvd.shutdown()


@with_sets
def test_every_op_in_a_dynamic_set(world: World) -> None:
    """All ranks but the first, so that a rank in the set is not the rank in the world."""
    members = list(range(1, world.size))
    chosen = hvd.add_process_set(members)
    assert chosen.ranks == members
    if world.rank != 0:
        check_every_op(world, chosen, members)
    hvd.barrier()


def check_every_op(world: World, chosen: Any, members: list[int]) -> None:
    place, count, me = world.rank - 1, len(members), world.rank
    assert (chosen.rank(), chosen.size()) == (place, count)
    tensor = torch.full((2,), float(me * 12))
    total = 12.0 * sum(members)
    assert hvd.allreduce(tensor, process_set=chosen).tolist() == [total / count] * 2
    assert hvd.allreduce(tensor, op=hvd.Sum, process_set=chosen).tolist() == [total] * 2
    assert (
        hvd.allreduce(tensor, op=hvd.Max, process_set=chosen).tolist() == [12.0 * members[-1]] * 2
    )
    results = hvd.grouped_allreduce([tensor], op=hvd.Sum, process_set=chosen)
    assert results[0].tolist() == [total] * 2
    gathered = hvd.allgather(torch.full((place + 1,), me), process_set=chosen)
    assert gathered.tolist() == [r for r in members for _ in range(r)]
    for root in members:  # by their ranks in the world
        assert hvd.broadcast(torch.tensor([me]), root, process_set=chosen).item() == root
        in_place = torch.tensor([me])
        assert hvd.broadcast_(in_place, root, process_set=chosen).item() == root
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast(tensor, 0, process_set=chosen)
    result, splits = hvd.alltoall(torch.full((count,), me), [1] * count, process_set=chosen)
    assert result.tolist() == members
    assert splits.tolist() == [1] * count
    part = hvd.reducescatter(torch.full((count, 2), float(me)), op=hvd.Sum, process_set=chosen)
    assert part.tolist() == [[float(sum(members))] * 2]
    hvd.barrier(process_set=chosen)


@with_sets
def test_gradients_in_a_set(world: World) -> None:
    members = list(range(1, world.size))
    chosen = hvd.add_process_set(members)
    if world.rank != 0:
        check_gradients(world, chosen, len(members))
    hvd.barrier()


def check_gradients(world: World, chosen: Any, count: int) -> None:
    x = torch.ones(2, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, process_set=chosen).sum().backward()
    assert grad_of(x).tolist() == [count] * 2
    x = torch.ones(2, requires_grad=True)
    hvd.broadcast(x, 1, process_set=chosen).sum().backward()
    assert grad_of(x).tolist() == ([1.0] * 2 if world.rank == 1 else [0.0] * 2)
    x = torch.ones(2, requires_grad=True)
    hvd.allgather(x, process_set=chosen).sum().backward()
    assert grad_of(x).tolist() == [1.0] * 2
    x = torch.ones(count, requires_grad=True)
    hvd.alltoall(x, process_set=chosen).sum().backward()
    assert grad_of(x).tolist() == [1.0] * count


@with_sets_on_shm
def test_ranks_in_a_set_are_sorted(world: World) -> None:
    backwards = hvd.add_process_set(list(reversed(range(world.size - 1))))
    assert backwards.ranks == list(range(world.size - 1))
    if backwards.included():
        assert backwards.rank() == world.rank
        gathered = hvd.allgather(torch.tensor([world.rank]), process_set=backwards)
        assert gathered.tolist() == backwards.ranks
    hvd.barrier()


@with_sets
def test_duplicates_are_refused(world: World) -> None:
    chosen = hvd.add_process_set([0])
    for again in ([0], hvd.ProcessSet([0])):
        with pytest.raises(ValueError):
            hvd.add_process_set(again)
    with pytest.raises(ValueError):
        hvd.add_process_set(list(range(world.size)))  # that is the global one
    with pytest.raises(ValueError):
        hvd.add_process_set(chosen)
    check_works()
    if world.rank == 0:
        check_works("alone", chosen)
    hvd.barrier()


@ranks(2, 3, transports=SHM)
def test_duplicates_in_init(world: World) -> None:
    """The rank is told, and the engine is there nevertheless; a second init may mend it."""
    try:
        with pytest.raises(ValueError):
            hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
        assert hvd.is_initialized()
        hvd.init()
        check_works()
    finally:
        hvd.shutdown()


@with_sets
def test_a_rank_that_is_not_in_the_set(world: World) -> None:
    chosen = hvd.add_process_set([0])
    if world.rank == 0:
        for turn in range(3):
            check_works(f"{turn}", chosen)
    else:
        rows = torch.ones(2, 2)
        for call in (
            lambda: hvd.allreduce(rows, name="x", process_set=chosen),
            lambda: hvd.allreduce_async_(rows, process_set=chosen),
            lambda: hvd.grouped_allreduce([rows], process_set=chosen),
            lambda: hvd.allgather(rows, process_set=chosen),
            lambda: hvd.broadcast(rows, 0, process_set=chosen),
            lambda: hvd.alltoall(rows, process_set=chosen),
            lambda: hvd.reducescatter(rows, process_set=chosen),
            lambda: hvd.barrier(process_set=chosen),
        ):
            with pytest.raises(ValueError, match=r"(?i)process ?set"):
                call()
    check_works()


@on_ranks(3, 4, process_sets="dynamic")
def test_overlapping_sets_at_the_same_time(world: World) -> None:
    """Every pair of ranks is a set; all are used at once, by one name, in orders that differ."""
    size, rank = world.size, world.rank
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    sets = {pair: hvd.add_process_set(list(pair)) for pair in pairs}
    for turn in range(3):
        mine = [pair for pair in pairs if rank in pair]
        if rank % 2:
            mine.reverse()
        handles = {
            pair: hvd.allreduce_async(
                torch.full((3,), float(10**rank)), name="x", op=hvd.Sum, process_set=sets[pair]
            )
            for pair in mine
        }
        everyone = hvd.allreduce_async(torch.full((2,), 1.0), name="x", op=hvd.Sum)
        for a, b in reversed(mine):
            assert hvd.synchronize(handles[a, b]).tolist() == [10**a + 10**b] * 3, turn
        assert hvd.synchronize(everyone).tolist() == [size] * 2


@on_ranks(4, process_sets="dynamic")
def test_a_set_within_a_set(world: World) -> None:
    outer, inner = hvd.add_process_set([0, 1, 2]), hvd.add_process_set([0, 1])
    if outer.included():
        handle = hvd.allreduce_async(torch.ones(1), name="x", op=hvd.Sum, process_set=outer)
        if inner.included():
            check_works("x", inner)
        assert hvd.synchronize(handle).item() == 3
    check_works("at the end")


@on_ranks(3, process_sets="dynamic")
def test_a_set_that_waits_holds_up_no_other(world: World) -> None:
    """Rank 1 comes late to its set with rank 0, which meanwhile works with rank 2.

    That rank 1 is late is made sure of by a message of all ranks, which follows that work.
    """
    slow, quick = hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])

    def start() -> list[int]:
        return [
            hvd.allreduce_async(torch.ones(5), name=str(i), op=hvd.Sum, process_set=slow)
            for i in range(3)
        ]

    handles = start() if world.rank == 0 else []
    if world.rank in (0, 2):
        for turn in range(50):
            check_works(f"{turn}", quick)
        hvd.barrier(process_set=quick)
    assert not any(hvd.poll(handle) for handle in handles)
    hvd.broadcast(torch.ones(1), 0, name="the others have done their work")
    if world.rank == 1:
        handles = start()
    for handle in handles:
        assert hvd.synchronize(handle).tolist() == [2.0] * 5


@on_ranks(3, process_sets="dynamic")
def test_a_barrier_of_a_set_holds_up_no_other(world: World) -> None:
    pair = hvd.add_process_set([0, 1])
    if world.rank == 2:
        for turn in range(5):
            check_works(f"{turn}")
    else:
        hvd.barrier(process_set=pair)
        for turn in range(5):
            check_works(f"{turn}")
        hvd.barrier(process_set=pair)


@with_sets
def test_removal(world: World) -> None:
    chosen = hvd.add_process_set([0])
    other = hvd.add_process_set([1])
    number = chosen.process_set_id
    assert hvd.remove_process_set(chosen) is True
    assert chosen.process_set_id is None
    assert number is not None
    with pytest.raises(ValueError, match=r"(?i)process ?set"):
        hvd.allreduce(torch.ones(1), process_set=chosen)
    assert hvd.remove_process_set(chosen) is False, "removed already"
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0, 1])) is False, "never added"
    if world.rank == 1:
        check_works("still there", other)
    again = hvd.add_process_set([0])
    if world.rank == 0:
        check_works("again", again)
    check_works()


@with_sets_on_shm
def test_many_sets_come_and_go(world: World) -> None:
    for turn in range(20):
        chosen = hvd.add_process_set([turn % world.size])
        if chosen.included():
            check_works("x", chosen)
        assert hvd.remove_process_set(chosen) is True
    check_works()


@with_sets_on_shm
def test_a_set_object_says_what_it_is(world: World) -> None:
    unknown = hvd.ProcessSet([1, 0])
    assert unknown.process_set_id is None
    assert unknown.rank() is None
    assert unknown.size() is None
    added = hvd.add_process_set(hvd.ProcessSet([0]))
    assert isinstance(added, hvd.ProcessSet)
    assert str(added.process_set_id) in str(added)
    assert "0" in str(added)
    assert added.included() == (world.rank == 0)


@ranks(2, transports=SHM)
def test_sets_of_an_earlier_init_are_gone(world: World) -> None:
    chosen = hvd.ProcessSet([0])
    hvd.init(process_sets=[chosen])
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    try:
        with pytest.raises(ValueError, match=r"(?i)process ?set"):
            hvd.allreduce(torch.ones(1), process_set=chosen)
        added = hvd.add_process_set([0])
        if world.rank == 0:
            check_works("x", added)
        check_works()
    finally:
        hvd.shutdown()
