"""Ranks that wait for each other in different process sets are told so, with the cycle.

A rank that reduced in a pair, while the other one of the pair met all ranks first, waited for its
patience, 300 s by default. As long as any thread of theirs may still ask for what is missing,
nothing is wrong: the second half of this file is about those.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hvd_stage import check_works, on_ranks, until

import kadril.torch as hvd
from kadril.errors import DeadlockError, MismatchError
from kadril.world import World

BOUND = (
    8.0  # seconds; one is found in 0.7 s on a machine that is free, and patience is 45 s or more
)
LONG = 1.5  # seconds that a rank or thread computes: twice as long as a deadlock needs to be found

on_sets = on_ranks(3, transports=("shm",), process_sets="dynamic")


def check_deadlock(wait: Callable[[], object], *lines: str) -> None:
    """The wait ends with an error that has a line like each of these, in this order.

    There may be a line of a rank that waits for those, if it did so before they were found.
    """
    start = time.monotonic()
    with pytest.raises(DeadlockError) as caught:
        wait()
    assert time.monotonic() - start < BOUND
    assert isinstance(caught.value, hvd.HorovodInternalError)
    told = caught.value.waits
    assert len(lines) <= len(told) <= hvd.size()
    for line, wanted in zip(told, lines, strict=False):
        assert re.match(wanted, line), line
    assert all("test_hvd_cross_set_deadlock.py:" in line for line in told)


def reduce_in(process_set: hvd.ProcessSet, name: str) -> torch.Tensor:
    return hvd.allreduce(torch.ones(4), name=name, op=hvd.Sum, process_set=process_set)


@on_sets
def test_a_pair_beside_a_barrier_of_all(world: World) -> None:
    pair = hvd.add_process_set([0, 1])
    check_deadlock(
        (lambda: reduce_in(pair, "loss")) if world.rank == 0 else hvd.barrier,
        r"rank 0 waits for rank 1 in allreduce\(float32\[4\], sum, name='loss'\) of the process set"
        " of ranks 0, 1 at ",
        r"rank 1 waits for rank 0 in barrier\(unnamed\) of the process set of ranks 0, 1, 2 at",
    )


@on_sets
def test_a_cycle_of_three_sets(world: World) -> None:
    """Nobody shares a set with both others, and each waits for the next one."""
    pairs = [hvd.add_process_set(sorted({rank, (rank + 1) % 3})) for rank in range(3)]
    check_deadlock(
        lambda: reduce_in(pairs[world.rank], "x"),
        "rank 0 waits for rank 1 in allreduce",
        "rank 1 waits for rank 2 in allreduce",
        "rank 2 waits for rank 0 in allreduce",
    )


@on_sets
def test_sets_whose_members_have_all_asked_for_something(world: World) -> None:
    """No cycle of the engine is under way: only ledgers know who has not asked for what."""
    pair = hvd.add_process_set([0, 1])
    early = f"early {world.rank}"
    hvd.allreduce_async(torch.ones(2), name=early)
    if pair.included():
        hvd.allreduce_async(torch.ones(2), name=early, process_set=pair)
    own = pair if world.rank == 0 else hvd.global_process_set
    check_deadlock(
        lambda: reduce_in(own, "abc"[world.rank]),
        r"rank 0 waits for rank 1 in allreduce\(.*name='a'\) of the process set of ranks 0, 1 at",
        r"rank 1 waits for ranks? 0.* in allreduce\(.*name='b'\) of the process set of ranks",
    )


@on_sets
def test_a_process_set_beside_a_group_of_the_transport(world: World) -> None:
    pair = hvd.add_process_set([0, 1])
    group = world.transport.split(0)
    assert group is not None
    if world.rank == 0:
        with pytest.raises(DeadlockError):
            reduce_in(pair, "x")
    else:
        with pytest.raises(DeadlockError):
            group.barrier(name="raw")
    group.close()


@on_sets
def test_all_threads_of_a_rank_wait(world: World) -> None:
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])]

    def wait_in(process_set: hvd.ProcessSet) -> int:
        with pytest.raises(DeadlockError) as caught:
            reduce_in(process_set, "x")
        return len(caught.value.waits)

    if world.rank == 0:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(wait_in, sets[0])
            assert wait_in(sets[1]) == 4
            assert other.result() == 4
    else:
        assert wait_in(hvd.global_process_set) == 4


@on_ranks(4, transports=("shm",), process_sets="dynamic")
def test_ranks_that_are_not_concerned_go_on(world: World, tmp_path: Path) -> None:
    """A rank in a set that has ended learns of it when it asks there, and others never."""
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 1, 2])]
    if world.rank < 2:
        with pytest.raises(DeadlockError):
            reduce_in(sets[world.rank], "x")
        (tmp_path / str(world.rank)).touch()
    else:
        assert until(lambda: all((tmp_path / str(rank)).exists() for rank in range(2)))
    check_works("after")
    if world.rank == 2:
        with pytest.raises(DeadlockError, match="late"):
            reduce_in(sets[1], "late")


@on_sets
def test_a_mismatch_within_a_set_is_still_one(world: World) -> None:
    """Rank 2 waits for ranks that are told of a mismatch in another set, and then come."""
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        with pytest.raises(MismatchError):
            reduce_in(pair, f"from {world.rank}")
        check_works("after", pair)
    check_works("all")


# What is no deadlock.


@on_sets
def test_a_request_that_nobody_waits_for_is_served(world: World) -> None:
    """Rank 1 has asked for what rank 0 waits for, and waits for all ranks meanwhile."""
    pair = hvd.add_process_set([0, 1])
    if world.rank == 0:
        assert reduce_in(pair, "x").tolist() == [2.0] * 4
        time.sleep(LONG)
    elif world.rank == 1:
        ones = torch.ones(4)
        handle = hvd.allreduce_async(ones, name="x", op=hvd.Sum, process_set=pair)
    hvd.barrier()
    if world.rank == 1:
        assert hvd.synchronize(handle).tolist() == [2.0] * 4


@on_sets
def test_a_rank_that_computes(world: World) -> None:
    """Rank 1 computes while rank 0 waits for it in the pair, and rank 2 among all."""
    pair = hvd.add_process_set([0, 1])
    if world.rank == 1:
        time.sleep(LONG)
    if pair.included():
        check_works("x", pair)
    check_works("y")


@on_sets
@pytest.mark.parametrize("has_submitted", [True, False])
def test_another_thread_still_asks(world: World, has_submitted: bool) -> None:
    """Rank 1 waits for all; its second thread comes late to the pair, in which rank 0 waits."""
    pair = hvd.add_process_set([0, 1])

    def ask_later() -> None:
        if has_submitted:
            check_works("at once", pair)
        time.sleep(LONG)
        check_works("x", pair)

    if world.rank == 1:
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(ask_later)
            check_works("y")
            later.result()
        return
    if world.rank == 0:
        if has_submitted:
            check_works("at once", pair)
        check_works("x", pair)
    check_works("y")


@on_sets
def test_a_rank_that_polls(world: World) -> None:
    """Rank 1 looks at a handle of all ranks again and again, and then asks in the pair."""
    pair = hvd.add_process_set([0, 1])
    if world.rank == 1:
        handle = hvd.allreduce_async(torch.ones(2), name="y", op=hvd.Sum)
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            assert not hvd.poll(handle)
            time.sleep(0.01)
        check_works("x", pair)
        assert hvd.synchronize(handle).tolist() == [3.0] * 2
        return
    if world.rank == 0:
        check_works("x", pair)
    assert hvd.allreduce(torch.ones(2), name="y", op=hvd.Sum).tolist() == [3.0] * 2


def work_in_turn(sets: list[hvd.ProcessSet], dice: random.Random, num_turns: int) -> None:
    """Ask for the same of each set in any order, and wait in any order, with pauses."""
    for turn in range(num_turns):
        asked = [(members, f"{turn}.{index}") for members in sets for index in range(3)]
        dice.shuffle(asked)
        handles = []
        for members, name in asked:
            handle = hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum, process_set=members)
            handles.append((members, handle))
            if dice.random() < 0.1:
                time.sleep(dice.uniform(0.1, 1.2))
        dice.shuffle(handles)
        for members, handle in handles:
            assert hvd.synchronize(handle).tolist() == [members.size()] * 2
            if dice.random() < 0.1:
                time.sleep(dice.uniform(0.1, 1.2))


@on_ranks(3, transports=("shm",), process_sets="dynamic", timeout=90.0)
def test_no_false_alarm_in_disorder(world: World) -> None:
    """Nothing is missing once all have asked; pauses are about as long as a proof takes."""
    pairs = [hvd.add_process_set(sorted({rank, (rank + 1) % 3})) for rank in range(3)]
    mine = [members for members in [hvd.global_process_set, *pairs] if members.included()]
    work_in_turn(mine, random.Random(world.rank), num_turns=4)
