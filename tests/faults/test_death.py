"""F01, F02: a rank is killed at every named point of every collective, and at random times.

Every survivor must raise `PeerLost` with that rank within a second: no hang, and no wrong result.
"""

from __future__ import annotations

import random
import signal
import time

import pytest
import work
from control_groups import held_group

from kadril.testing import Ranks, fault_points, faults, no_leaks
from kadril.testing.outcome import Outcome
from kadril.world import World

BOUND = 1.0  # seconds from the death to the exception, on every survivor


def check_survivors(outcomes: list[Outcome], victim: int, story: str) -> None:
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.error is not None, f"{story}: {outcome}"
        assert outcome.error.type == "PeerLost", f"{story}: {outcome}"
        assert outcome.error.fields["rank"] == victim, f"{story}: {outcome}"
        assert outcome.delay is not None, f"{story}: {outcome}"
        assert outcome.delay < BOUND, f"{story}: took {outcome.delay:.3f} s"


def kill_at(point: str, way: str, size: int, victim: int) -> None:
    collective = point.partition(".")[0]
    with Ranks(size, patience=20.0) as ranks:
        ranks.fault(victim, f"{point}:kill").start(work.repeat, collective, way, victim)
        outcomes = ranks.wait(30.0)
        assert outcomes[victim].signal == signal.SIGKILL, f"{point}: {outcomes[victim]}"
        check_survivors(outcomes, victim, f"{point}, {way}, {size} ranks")


@pytest.mark.parametrize("point", fault_points())
def test_kill_at_every_point(point: str) -> None:
    """The quick part: three ranks, through staging memory."""
    kill_at(point, "staged", size=3, victim=1)


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", work.WAYS)
@pytest.mark.parametrize("point", fault_points())
def test_kill_at_every_point_every_way(point: str, way: str, size: int, victim: int) -> None:
    kill_at(point, way, size, victim)


def kill_at_random(seed: int) -> float:
    dice = random.Random(seed)
    size = dice.choice([2, 3, 4])
    victim = dice.randrange(size)
    with Ranks(size, patience=20.0) as ranks:
        ranks.start(work.mix, seed)
        ranks.wait_mark("running")
        # The time of the fault is what is random here; nothing waits for this sleep to be long
        # enough.
        time.sleep(dice.uniform(0, 0.03))
        ranks.signal(victim, signal.SIGKILL)
        outcomes = ranks.wait(30.0)
        check_survivors(outcomes, victim, f"seed {seed}, {size} ranks")
        return max(outcome.delay or 0.0 for outcome in outcomes if outcome.rank != victim)


def test_kill_at_random_times() -> None:
    with no_leaks():
        for seed in range(15):
            kill_at_random(seed)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_kill_at_200_random_times() -> None:
    start = random.SystemRandom().randrange(10**6)
    delays = sorted(kill_at_random(seed) for seed in range(start, start + 200))
    # For the record: shown by `pytest -rP`.
    print(f"seeds from {start}: p50 {delays[100] * 1e3:.1f} ms, max {delays[-1] * 1e3:.1f} ms")  # noqa: T201


def wait_for_rank_1(world: World) -> None:
    world.transport.barrier()
    faults.gate("met")
    if world.rank == 1:
        faults.gate("never")
    world.transport.barrier()


def test_a_killed_rank_that_gets_no_core_is_dead() -> None:
    """A kill took 3.4 s once, at a load of 20: a rank must run to die, and had no core to run on.

    The others took it for late, and raised `Stalled` when their patience of 3 s was over.
    """
    with held_group() as group, Ranks(3, patience=3.0) as ranks:
        ranks.start(wait_for_rank_1).wait_mark("met")
        group.add(ranks.outcomes[1].pid)
        group.hold()
        ranks.open_gate("met")
        ranks.signal(1, signal.SIGKILL)
        survivors = [ranks.outcomes[0], ranks.outcomes[2]]
        assert ranks.pump(lambda: all(each.raised for each in survivors), 20.0)
        assert ranks.outcomes[1].alive  # still
        group.let_go()
        check_survivors(ranks.wait(20.0), 1, "no core")


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_50_crashes_leave_nothing() -> None:
    """F16: every rank is killed at once, 50 times over; nothing may stay behind."""
    with no_leaks():
        for seed in range(50):
            with Ranks(3, patience=20.0) as ranks:
                ranks.start(work.mix, seed)
                ranks.wait_mark("running")
                for rank in range(3):
                    ranks.signal(rank, signal.SIGKILL)
                assert all(outcome.signal == signal.SIGKILL for outcome in ranks.wait(10.0))
