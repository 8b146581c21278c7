"""F41, F42: more ranks than cores, and very many calls: no false death, nothing that grows."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import torch
import work

from kadril.testing import Ranks
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


def soak(world: World, seed: int, seconds: float) -> tuple[int, int, int]:
    """Mixed collectives while rank 0 says so; gives calls, growth in memory and descriptors."""
    dice = random.Random(seed)
    names = list(work.COLLECTIVES)
    num_calls = 0
    resident, descriptors = 0, 0
    deadline = time.monotonic() + seconds
    while True:
        for _ in range(100):
            way = dice.choice(work.WAYS)
            count = dice.choice([1, 7, 1000, 5000, work.NUM_ELEMENTS[way]])
            count = min(count, work.NUM_ELEMENTS[way])
            work.COLLECTIVES[dice.choice(names)](world, count, way, dice.randrange(world.size))
            num_calls += 1
        if num_calls == 1000:  # warm: caches and pools are filled
            resident = resident_bytes()
            descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        ends = torch.tensor([world.is_main and time.monotonic() > deadline and num_calls > 1000])
        world.transport.broadcast(ends, root=0)
        if ends.item():
            break
    growth = len(os.listdir("/proc/self/fd")) - descriptors  # noqa: PTH208
    return num_calls, resident_bytes() - resident, growth


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_long_run_stays_flat() -> None:
    seed = random.SystemRandom().randrange(10**6)
    with Ranks(3, patience=60.0) as ranks:
        outcomes = ranks.start(soak, seed, 120.0).wait(300.0)
        for outcome in outcomes:
            assert outcome.returned, f"seed {seed}: {outcome}"
            num_calls, memory_growth, descriptor_growth = outcome.value
            # Slack of the allocators; a leak of a thousandth of what was moved would be more.
            assert memory_growth < 64 << 20, f"seed {seed}: {memory_growth} bytes"
            assert descriptor_growth == 0
        print(f"seed {seed}: {num_calls} calls on each of 3 ranks")  # noqa: T201
