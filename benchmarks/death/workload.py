"""Workload of the ranks until one of them is killed."""

from __future__ import annotations

import random

import torch

from kadril.testing import faults
from kadril.world import World


def mix(world: World, seed: int) -> None:
    """Collectives in a random order that is the same on all ranks; every result is checked."""
    dice = random.Random(seed)  # noqa: S311
    total = sum(range(world.size))
    world.transport.barrier()
    faults.mark("running")
    while True:
        count = dice.choice([1, 100, 20_000, 200_000])
        x = torch.full((count,), world.rank)
        if dice.random() < 0.5:
            world.transport.allreduce(x)
            expected = torch.full((count,), total)
        else:
            gathered = torch.empty(count * world.size, dtype=x.dtype)
            world.transport.allgatherv(x, gathered, [count] * world.size)
            x, expected = gathered, torch.arange(world.size).repeat_interleave(count)
        if not torch.equal(x, expected):
            raise AssertionError("a wrong result was returned as a good one")
