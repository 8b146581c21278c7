"""F41, F42: more ranks than cores, and very many calls: no false death, nothing that grows."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import work
from control_groups import core_group

from kadril.testing import Ranks, faults
from kadril.world import World


def work_in_a_crowd(world: World) -> int:
    for count in (1, 1000, 100_000):
        for way in ("staged", "shared"):
            work.do_allreduce(world, count, way, 0)
            work.do_allgatherv(world, count // 10, way, 0)
            work.do_exchange(world, count, way, 0)
    return world.rank


def test_eight_ranks_share_the_cores() -> None:
    with Ranks(8, patience=30.0) as ranks:
        outcomes = ranks.start(work_in_a_crowd).wait(60.0)
        assert [outcome.value for outcome in outcomes] == list(range(8)), outcomes


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_sixteen_ranks_share_the_cores() -> None:
    with Ranks(16, patience=60.0) as ranks:
        outcomes = ranks.start(work_in_a_crowd).wait(120.0)
        assert [outcome.value for outcome in outcomes] == list(range(16)), outcomes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(world: World, seed: int, num_calls: int) -> tuple[int, int]:
    """Mixed collectives, each checked; returns the growth in memory and descriptors."""
    dice = random.Random(seed)
    names = list(work.COLLECTIVES)
    resident, descriptors = 0, 0
    for number in range(num_calls):
        way = dice.choice(work.WAYS)
        most = work.NUM_ELEMENTS[way] if number % 100 == 0 else 5000
        count = min(dice.choice([1, 7, 1000, most]), work.NUM_ELEMENTS[way])
        work.COLLECTIVES[dice.choice(names)](world, count, way, dice.randrange(world.size))
        if number == num_calls // 10:  # warm: caches and pools are filled
            resident = resident_bytes()
            descriptors = num_descriptors()
    return resident_bytes() - resident, num_descriptors() - descriptors


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    "num_calls",
    [300, pytest.param(10**6, marks=[pytest.mark.faults, pytest.mark.timeout(7200)])],
)
def test_a_long_run_stays_flat(num_calls: int) -> None:
    """F42: a million mixed collectives of random sizes and ways."""
    seed = random.SystemRandom().randrange(10**6)
    began = time.monotonic()
    with Ranks(3, patience=60.0) as ranks:
        for outcome in ranks.start(soak, seed, num_calls).wait(7000.0):
            assert outcome.returned, f"seed {seed}: {outcome}"
            memory_growth, descriptor_growth = outcome.value
            # Slack of the allocators; a leak of 64 bytes a call would be more.
            assert memory_growth < 64 << 20, f"seed {seed}: {memory_growth} bytes"
            assert descriptor_growth == 0
            print(f"seed {seed}: {num_calls} calls, memory grew by {memory_growth} bytes")  # noqa: T201
    print(f"{time.monotonic() - began:.0f} s")  # noqa: T201


def work_with_half_a_core(world: World) -> int:
    faults.gate("in the group")
    return work_in_a_crowd(world)


@pytest.mark.faults
def test_ranks_with_half_a_core() -> None:
    """F41: four ranks in a control group that has half a core; nobody is taken for dead."""
    with core_group(quota=50, period=100) as group, Ranks(4, patience=60.0) as ranks:
        ranks.start(work_with_half_a_core).wait_mark("in the group")
        for outcome in ranks.outcomes:
            group.add(outcome.pid)
        ranks.open_gate("in the group")
        outcomes = ranks.wait(100.0)
        assert [outcome.value for outcome in outcomes] == list(range(4)), outcomes
