"""Programs whose ranks are killed or stopped while they run, and what the survivors must say."""

from __future__ import annotations

import signal

import torch

from kadril.testing.faults import mark
from kadril.testing.outcome import Outcome
from kadril.world import World

BOUND = 2.0  # seconds; a roll call of the survivors is in it


def allreduce_for_ever(world: World, count: int) -> None:
    array = torch.zeros(count)
    world.transport.allreduce(array)
    mark("running")
    while True:
        world.transport.allreduce(array)


def wait_for_rank(world: World, missing: int) -> None:
    """Wait in a barrier for a rank that does something else."""
    world.transport.barrier()
    mark("running")
    if world.rank == missing:
        signal.pause()
    world.transport.barrier()


def check_survivors(outcomes: list[Outcome], victim: int) -> None:
    assert outcomes[victim].signal == signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.error is not None, outcome
            assert outcome.error.type == "PeerLost", outcome
            assert outcome.error.fields["rank"] == victim, outcome
            assert outcome.delay is not None
            assert outcome.delay < BOUND, f"took {outcome.delay:.3f} s"
