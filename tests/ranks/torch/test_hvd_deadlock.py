"""Ranks that sleep on requests that can never meet are told so, early, and can go on.

Such ranks used to wait for their patience, 300 s by default. As long as any rank may still ask for
the missing half, nothing is wrong: the second half of this file is about those.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hvd_stage import (
    SHM,
    check_works,
    on_ranks,
    raises_mismatch,
    until,
    with_peers,
    with_sets_on_shm,
)

import kadril.torch as hvd
from kadril.errors import MismatchError
from kadril.world import World

BOUND = 8.0  # seconds; a deadlock is found in 0.7 s, and patience is 45 s or more
LONG = 1.5  # seconds that a rank or thread computes: twice as long as a deadlock needs to be found

OPS: dict[str, Callable[[], object]] = {
    "allreduce": lambda: hvd.allreduce(torch.ones(4), name="x"),
    "allgather": lambda: hvd.allgather(torch.ones(4), name="x"),
    "broadcast": lambda: hvd.broadcast(torch.ones(4), 0, name="x"),
    "alltoall": lambda: hvd.alltoall(torch.ones(12), name="x"),
    "reducescatter": lambda: hvd.reducescatter(torch.ones(4), name="x"),
    "group": lambda: hvd.grouped_allreduce([torch.ones(4)], name="x"),
    "barrier": hvd.barrier,
    "unnamed": lambda: hvd.allreduce(torch.ones(4)),
    "name='y'": lambda: hvd.allreduce(torch.ones(4), name="y"),
}


def check(first: Callable[[], object], second: Callable[[], object], *texts: str) -> None:
    """Rank 0 asks for the first, all others for the second: a mismatch that all learn of soon."""
    start = time.monotonic()
    with raises_mismatch("test_hvd_deadlock.py", *texts):
        (first if hvd.rank() == 0 else second)()
    assert time.monotonic() - start < BOUND
    first()
    second()


@with_peers
def test_one_name_for_two_kinds(world: World) -> None:
    check(OPS["allreduce"], OPS["allgather"], "allreduce(", "allgather(", "name='x'")


@on_ranks(2, transports=SHM)
def test_every_kind_beside_every_other(world: World) -> None:
    names = list(OPS)
    for first, second in zip(names, names[1:] + names[:1], strict=True):
        check(OPS[first], OPS[second])


@with_peers
def test_handles_that_never_meet(world: World) -> None:
    """All that is under way fails, at each handle; the names are free again."""
    ask = hvd.allreduce_async if world.rank == 0 else hvd.allgather_async
    handles = [ask(torch.ones(2), name=name) for name in "abc"]
    for name, handle in zip("abc", handles, strict=True):
        with pytest.raises(MismatchError) as caught:
            hvd.synchronize(handle)
        assert f"name='{name}'" in caught.value.calls[world.rank]
    for name in "abc":
        check_works(name)


@with_peers
def test_one_unnamed_op_too_many(world: World) -> None:
    """The drift is told, and un-named ops are counted anew after it."""
    if world.rank == 0:
        with pytest.raises(MismatchError, match="barrier"):
            check_works()
    else:
        with pytest.raises(MismatchError, match="allreduce"):
            hvd.barrier()
    for _ in range(2):
        check_works()
        hvd.barrier()


@on_ranks(3, transports=("shm", "c10d"))
def test_a_rank_that_has_joined(world: World) -> None:
    steps: list[Callable[[], object]] = [hvd.join, OPS["allgather"], OPS["broadcast"]]
    with raises_mismatch("join()", "allgather(", "broadcast("):
        steps[world.rank]()
    assert hvd.join() in range(world.size)


@on_ranks(3, transports=("shm", "c10d"))
def test_the_last_rank_comes_late(world: World) -> None:
    """The two that differ cannot know it before the third has come, and then are not alone."""
    if world.rank == 2:
        time.sleep(LONG)
    start = time.monotonic()
    with raises_mismatch("allreduce(", "allgather("):
        OPS["allgather" if world.rank == 1 else "allreduce"]()
    assert time.monotonic() - start < BOUND


@on_ranks(3, transports=("shm", "c10d"), process_sets="dynamic")
def test_in_a_process_set(world: World) -> None:
    """Members of the set alone learn of it; the other rank waits for them in the set of all."""
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        op = hvd.allreduce if world.rank == 0 else hvd.allgather
        with pytest.raises(MismatchError) as caught:
            op(torch.ones(2), name="x", process_set=pair)
        assert sorted(caught.value.calls) == [0, 2]
        check_works("x", pair)
    check_works("x")


@with_sets_on_shm
def test_making_a_set_beside_another_call(world: World) -> None:
    if world.rank == 0:
        with pytest.raises(MismatchError, match="add_process_set"):
            hvd.add_process_set([0])
    else:
        with pytest.raises(MismatchError, match="add_process_set"):
            OPS["allreduce"]()
    check_works("after")


# What is no deadlock.


@with_peers
def test_both_kinds_of_one_name_in_any_order(world: World) -> None:
    """Legal on each rank, also where one takes its time between the two."""
    ops = [hvd.allreduce_async, hvd.allgather_async]
    tensor = torch.ones(2)
    for turn in range(3):
        order = ops if (world.rank + turn) % 2 else ops[::-1]
        handles = {op: op(tensor, name="x") for op in order[:1]}
        if turn == 2 and world.rank == 0:
            time.sleep(LONG)
        handles |= {op: op(tensor, name="x") for op in order[1:]}
        assert hvd.synchronize(handles[ops[0]]).tolist() == [1.0] * 2
        assert len(hvd.synchronize(handles[ops[1]])) == 2 * world.size


@with_peers
def test_a_rank_that_computes(world: World) -> None:
    """All others are blocked on what it has not asked for yet; it has asked for something else."""
    late = world.size - 1
    if world.rank == late:
        early = hvd.allreduce_async(torch.ones(2), name="early", op=hvd.Sum)
        time.sleep(LONG)
        check_works("late")
    else:
        check_works("late")
        early = hvd.allreduce_async(torch.ones(2), name="early", op=hvd.Sum)
    assert hvd.synchronize(early).tolist() == [world.size] * 2


@on_ranks(2, transports=("shm", "c10d"))
@pytest.mark.parametrize("has_submitted", [True, False])
def test_another_thread_still_asks(world: World, has_submitted: bool) -> None:
    """The main threads sleep on names that only the other rank's second thread asks for.

    That thread has asked for something before, or does so for the first time.
    """
    names = ["x", "y"] if world.rank == 0 else ["y", "x"]

    def ask_later() -> None:
        if has_submitted:
            check_works("at once")
        time.sleep(LONG)
        check_works(names[1])

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(ask_later)
        check_works(names[0])
        later.result()


@on_ranks(2, transports=("shm", "c10d"))
def test_a_thread_that_has_ended_asks_for_nothing(world: World) -> None:
    thread = threading.Thread(target=check_works, args=("by a thread",))
    thread.start()
    thread.join()
    check(OPS["allreduce"], OPS["broadcast"], "allreduce(", "broadcast(")


@on_ranks(2, transports=("c10d",))
def test_the_thread_of_the_engine_asks_for_nothing(world: World) -> None:
    """A large exchange starts another thread, which was taken for one of the user's."""
    hvd.allreduce(torch.ones(1 << 20), name="large")
    check(OPS["allreduce"], OPS["broadcast"], "allreduce(", "broadcast(")


@on_ranks(3, transports=("shm", "c10d"), process_sets="dynamic")
def test_a_rank_that_waits_in_another_set(world: World) -> None:
    """Rank 1 computes; rank 0 sleeps on it in their set, with a request of all ranks under way."""
    pair = hvd.add_process_set([0, 1])
    early = [hvd.allreduce_async(torch.ones(2), name=f"from {world.rank}", op=hvd.Sum)]
    if world.rank == 1:
        time.sleep(LONG)
    if world.rank != 2:
        check_works("pair", pair)
    for rank in range(world.size):
        if rank != world.rank:
            name = f"from {rank}"
            early.append(hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum))
    for handle in early:
        assert hvd.synchronize(handle).tolist() == [3.0] * 2


class Warnings(logging.Handler):
    """Keeps what is said of a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.name in record.getMessage():
            self.texts.append(record.getMessage())


@on_ranks(2, transports=("shm", "c10d"))
def test_ranks_that_poll_are_warned(world: World, tmp_path: Path) -> None:
    """Such ranks could still ask for the other half, and do: one warning, soon, and no error."""
    warnings = Warnings("both.kinds")
    logging.getLogger("kadril").addHandler(warnings)
    try:
        ops = [hvd.allreduce_async, hvd.allgather_async]
        first, second = ops if world.rank == 0 else ops[::-1]
        handles = [first(torch.ones(2), name="both.kinds")]
        assert until(lambda: bool(warnings.texts))
        (tmp_path / str(world.rank)).touch()
        assert until(lambda: all((tmp_path / str(rank)).exists() for rank in range(2)))
        handles.append(second(torch.ones(2), name="both.kinds"))
        for handle in handles:
            hvd.synchronize(handle)
    finally:
        logging.getLogger("kadril").removeHandler(warnings)
    (text,) = warnings.texts
    assert "rank 0 asks for allreduce(" in text
    assert "rank 1 asks for allgather(" in text


def work_in_disorder(part: str, process_set: hvd.ProcessSet, dice: random.Random) -> None:
    for turn in range(6):
        names = [f"{part}.{turn}.{index}" for index in range(8)]
        dice.shuffle(names)
        handles = [
            hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum, process_set=process_set)
            for name in names
        ]
        if dice.random() < 0.3:
            time.sleep(dice.uniform(0.1, 0.9))
        for handle in handles:
            assert hvd.synchronize(handle).tolist() == [process_set.size()] * 2


@on_ranks(3, transports=("shm", "c10d"), process_sets="dynamic")
def test_no_false_alarm_in_disorder(world: World) -> None:
    """Threads, sets, barriers and joins in any order, with pauses about as long as the grace."""
    pair = hvd.add_process_set([0, 1])
    everyone = hvd.global_process_set
    sets = {"a": everyone, "b": everyone} | ({"pair": pair} if pair.included() else {})
    with ThreadPoolExecutor(len(sets)) as pool:
        running = [
            pool.submit(work_in_disorder, part, members, random.Random(f"{part} {world.rank}"))
            for part, members in sets.items()
        ]
        for rank in range(world.size):
            if rank == world.rank:
                time.sleep(0.8)
            hvd.barrier()
        for future in running:
            future.result()
    time.sleep(0.5 * world.rank)
    assert hvd.join() in range(world.size)
