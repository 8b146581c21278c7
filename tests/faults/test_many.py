"""F32, F33: very many tensors in one step, and very many process sets."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

import kadril.torch as hvd
from kadril.testing import Ranks
from kadril.world import World

NUM_TENSORS = 10_000
STEP_SECONDS = 1.0  # gloo takes 13 s for this, one by one


def resources() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sum_many_tensors(world: World, num_tensors: int, num_steps: int) -> tuple[float, int]:
    """Return the seconds of the best step after the first, and the growth of memory in them."""
    hvd.init()
    tensors = [torch.full((16,), float(number)) for number in range(num_tensors)]
    seconds, memory = [], 0
    for step in range(num_steps):
        began = time.monotonic()
        handles = [
            hvd.allreduce_async(tensor, name=str(number), op=hvd.Sum)
            for number, tensor in enumerate(tensors)
        ]
        results = [hvd.synchronize(handle) for handle in handles]
        seconds.append(time.monotonic() - began)
        for number in range(0, num_tensors, 97):
            assert results[number].tolist() == [number * world.size] * 16
        if step == 1:
            memory = resident_bytes()
    growth = resident_bytes() - memory
    hvd.shutdown()
    return min(seconds[1:]), growth


def test_a_thousand_small_tensors() -> None:
    with Ranks(2, patience=60.0) as ranks:
        for outcome in ranks.start(sum_many_tensors, 1000, 3).wait(60.0):
            assert outcome.error is None, outcome
            assert outcome.value[0] < STEP_SECONDS


@pytest.mark.faults
def test_ten_thousand_small_tensors() -> None:
    """F32: fused, and with names that are known after the first step."""
    with Ranks(2, patience=60.0) as ranks:
        for outcome in ranks.start(sum_many_tensors, NUM_TENSORS, 12).wait(110.0):
            assert outcome.error is None, outcome
            seconds, growth = outcome.value
            assert seconds < STEP_SECONDS
            assert growth < 32 << 20, "ten steps of it must not grow"


def make_process_sets(world: World, num_at_once: int, num_rounds: int) -> tuple[int, int, int]:
    """Return threads and descriptors of the groups, and the growth of memory by sets."""
    hvd.init()
    hvd.allreduce(torch.ones(1), name="first")
    before = resources()
    pairs = [[0, 1], [1, 2], [0, 2]]
    groups = [world.transport.split(0) for _ in range(num_at_once)]
    during = resources()
    for group in groups:
        assert group is not None
        group.close()
    memory = 0
    for number in range(num_rounds):
        made = [hvd.add_process_set(ranks) for ranks in pairs]
        mine = made[number % 3]
        if mine.included():
            total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x", process_set=mine)
            assert total.tolist() == [2.0, 2.0]
        for one in made:
            hvd.remove_process_set(one)
        if number == num_rounds // 2:
            memory = resident_bytes()
    assert resources() == before
    growth = resident_bytes() - memory
    hvd.shutdown()
    return during[0] - before[0], during[1] - before[1], growth


@pytest.mark.parametrize("num_rounds", [20, pytest.param(334, marks=pytest.mark.faults)])
def test_process_sets_come_and_go(num_rounds: int) -> None:
    """F33: 200 groups at once, and three sets made and removed again and again."""
    with Ranks(3, patience=60.0) as ranks:
        for outcome in ranks.start(make_process_sets, 200, num_rounds).wait(110.0):
            assert outcome.error is None, outcome
            threads, descriptors, growth = outcome.value
            assert threads == 0
            assert descriptors <= 2 * 200
            assert growth < 16 << 20
