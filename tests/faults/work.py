"""Work of ranks while a fault strikes: collectives with results that are checked exactly."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from kadril.testing import faults
from kadril.world import World

# Bytes that take each way through the core; "shared" memory is zero-copy.
NUM_ELEMENTS = {"inlined": 16, "staged": 150_000, "shared": 150_000}
WAYS = tuple(NUM_ELEMENTS)

# A loop that is still going after this many calls has missed its fault.
MAX_CALLS = 200


def memory(world: World, count: int, way: str) -> torch.Tensor:
    if way == "shared":
        return world.shared_empty(count, torch.int64)
    return torch.zeros(count, dtype=torch.int64)


def ramp(count: int, rank: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64) * 8 + rank


def sum_of_ramps(count: int, size: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64) * 8 * size + sum(range(size))


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(result, expected):
        raise AssertionError("a wrong result was returned as a good one")


def do_allreduce(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count, way)
    x.copy_(ramp(count, world.rank))
    world.transport.allreduce(x)
    check(x, sum_of_ramps(count, world.size))


def do_reduce(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count, way)
    x.copy_(ramp(count, world.rank))
    root = (root + 1) % world.size  # so that `root`, the victim of the tests, is one that gives
    world.transport.reduce(x, root)
    check(x, sum_of_ramps(count, world.size) if world.rank == root else ramp(count, world.rank))


def do_broadcast(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count, way)
    x.copy_(ramp(count, world.rank))
    world.transport.broadcast(x, root)
    check(x, ramp(count, root))


def do_allgatherv(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count, way)
    x.copy_(ramp(count, world.rank))
    out = memory(world, count * world.size, way)
    world.transport.allgatherv(x, out, [count] * world.size)
    check(out, torch.cat([ramp(count, rank) for rank in range(world.size)]))


def do_reduce_scatterv(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count * world.size, way)
    x.copy_(ramp(count * world.size, world.rank))
    out = memory(world, count, way)
    world.transport.reduce_scatterv(x, out, [count] * world.size)
    check(out, sum_of_ramps(count * world.size, world.size).chunk(world.size)[world.rank])


def do_alltoallv(world: World, count: int, way: str, root: int) -> None:
    x = memory(world, count * world.size, way)
    x.copy_(torch.cat([ramp(count, world.rank * world.size + to) for to in range(world.size)]))
    out = memory(world, count * world.size, way)
    counts = [count] * world.size
    world.transport.alltoallv(x, counts, out, counts)
    sources = range(world.size)
    check(out, torch.cat([ramp(count, source * world.size + world.rank) for source in sources]))


def do_exchange(world: World, count: int, way: str, root: int) -> None:
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    sent, received = memory(world, count, way), memory(world, count, way)
    sent.copy_(ramp(count, world.rank))
    world.transport.exchange([(right, sent)], [(left, received)])
    check(received, ramp(count, left))


def do_barrier(world: World, count: int, way: str, root: int) -> None:
    world.transport.barrier()


COLLECTIVES: dict[str, Callable[[World, int, str, int], None]] = {
    "allreduce": do_allreduce,
    "reduce": do_reduce,
    "broadcast": do_broadcast,
    "allgatherv": do_allgatherv,
    "reduce_scatterv": do_reduce_scatterv,
    "alltoallv": do_alltoallv,
    "exchange": do_exchange,
    "barrier": do_barrier,
}


def repeat(world: World, collective: str, way: str, root: int) -> None:
    """One collective again and again, until the fault of another rank ends it."""
    for _ in range(MAX_CALLS):
        COLLECTIVES[collective](world, NUM_ELEMENTS[way], way, root)
    raise AssertionError(f"{MAX_CALLS} calls went well: the fault was never reached")


def mix(world: World, seed: int) -> None:
    """All collectives, sizes and ways in a random order that is the same on all ranks, for ever."""
    dice = random.Random(seed)
    world.transport.barrier()
    faults.mark("running")
    while True:
        collective = dice.choice(list(COLLECTIVES))
        way = dice.choice(WAYS)
        count = dice.randrange(1, NUM_ELEMENTS[way])
        COLLECTIVES[collective](world, count, way, dice.randrange(world.size))
