"""Ranks that wait for each other in different groups are told so within a second, with the cycle.

Seen once: rank 0 waited in a reduce of a sub-group while all others waited in a barrier of the
world, and nobody said anything for five minutes. As long as any thread of theirs could still make
the missing call, nothing is wrong: the second half of this file is about those.
"""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from kadril.errors import DeadlockError
from kadril.testing import Ranks, faults
from kadril.world import World

BOUND = 1.0  # seconds, from when the last rank waits
LONG = 1.2  # seconds that a rank or a thread takes: several times what a proof takes


def pair_and_world(world: World) -> dict[str, object]:
    """Rank 0 reduces in a pair, all others meet in the world."""
    pair = world.transport.split(0 if world.rank < 2 else None)
    world.transport.barrier()
    faults.gate("ready")
    start = time.monotonic()
    try:
        if world.rank == 0:
            assert pair is not None
            pair.reduce(np.ones(4, np.float32), 0, name="loss")
        else:
            world.transport.barrier(name="end of epoch")
    except DeadlockError as error:
        return {"seconds": time.monotonic() - start, "waits": error.waits, "text": str(error)}
    return {}


@pytest.mark.parametrize("size", [2, 4])
def test_a_reduce_of_a_pair_beside_a_barrier_of_all(size: int) -> None:
    with Ranks(size, patience=60.0) as ranks:
        ranks.start(pair_and_world).wait_mark("ready")
        ranks.open_gate("ready")
        outcomes = ranks.wait(20.0)
    for outcome in outcomes:
        assert outcome.returned, outcome.error
        told = outcome.value
        assert told["seconds"] < BOUND
        assert len(told["waits"]) == size
        first, *others = told["waits"]
        assert first.startswith(
            "rank 0 waits for rank 1 in reduce(float32[4], sum, root=0, name='loss') of the group"
            " of ranks 0, 1 at "
        )
        assert "test_cross_group_deadlock.py:" in first
        for rank, line in enumerate(others, start=1):
            assert line.startswith(f"rank {rank} waits for rank 0 in barrier(name='end of epoch')")
        assert "in the same order" in told["text"]


def ring_of_pairs(world: World) -> bool:
    """Each rank waits for the next, in three groups of two: nobody shares a group with all."""
    pairs = [
        world.transport.split(0 if world.rank in (first, (first + 1) % 3) else None)
        for first in range(3)
    ]
    own = pairs[world.rank]
    assert own is not None
    try:
        own.barrier()
    except DeadlockError as error:
        return len(error.waits) == 3
    return False


def test_a_cycle_of_three_groups() -> None:
    with Ranks(3, patience=60.0) as ranks:
        assert [outcome.value for outcome in ranks.start(ring_of_pairs).wait(20.0)] == [True] * 3


def bystander(world: World) -> str:
    """Ranks 0 and 1 are deadlocked; rank 2 computes, and their group of all is lost to it."""
    first = world.transport.split(0 if world.rank < 2 else None)
    second = world.transport.split(0 if world.rank < 2 else None)
    if world.rank == 2:
        faults.gate("busy")
        return "went on"
    own = first if world.rank == 0 else second
    assert own is not None
    try:
        own.barrier()
    except DeadlockError:
        return "deadlock"
    return "passed"


def test_a_rank_that_is_not_concerned_hears_nothing() -> None:
    with Ranks(3, patience=60.0) as ranks:
        ranks.start(bystander)
        assert ranks.pump(lambda: all(outcome.returned for outcome in ranks.look()[:2]), 20.0)
        ranks.open_gate("busy")
        values = [outcome.value for outcome in ranks.wait(20.0)]
    assert values == ["deadlock", "deadlock", "went on"]


# What is no deadlock.


def other_thread(world: World) -> str:
    """Rank 1's main thread waits for all, and its other thread comes late to the pair."""
    pair = world.transport.split(0 if world.rank < 2 else None)

    def come_late() -> None:
        time.sleep(LONG)
        assert pair is not None
        pair.barrier()

    if world.rank == 1:
        thread = threading.Thread(target=come_late)
        thread.start()
        world.transport.barrier()
        thread.join()
    else:
        if pair is not None:
            pair.barrier()
        world.transport.barrier()
    return "passed"


def slow_rank(world: World) -> str:
    """Rank 1 computes while rank 0 waits for it in the pair and rank 2 in the world."""
    pair = world.transport.split(0 if world.rank < 2 else None)
    if world.rank == 1:
        time.sleep(LONG)
    if pair is not None:
        pair.barrier()
    world.transport.barrier()
    return "passed"


@pytest.mark.parametrize(("program", "size"), [(other_thread, 3), (slow_rank, 3)])
def test_no_false_alarm(program: object, size: int) -> None:
    with Ranks(size, patience=60.0) as ranks:
        outcomes = ranks.start(program).wait(30.0)  # type: ignore[arg-type]
    assert [(outcome.value, outcome.error) for outcome in outcomes] == [("passed", None)] * size


def meet_in_the_right_order(world: World) -> str:
    pair = world.transport.split(0 if world.rank < 2 else None)
    faults.gate("between")
    if pair is not None:
        pair.barrier()
    world.transport.barrier()
    return "passed"


def test_a_stopped_rank_is_no_deadlock() -> None:
    with Ranks(3, patience=60.0) as ranks:
        ranks.start(meet_in_the_right_order).wait_mark("between")
        ranks.signal(1, signal.SIGSTOP)
        ranks.open_gate("between")
        ranks.pump(lambda: False, LONG)
        ranks.signal(1, signal.SIGCONT)
        values = [outcome.value for outcome in ranks.wait(20.0)]
    assert values == ["passed"] * 3
