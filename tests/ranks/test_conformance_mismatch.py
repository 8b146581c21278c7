"""Ranks that call different things all learn of it, and the next call works.

In each case one rank, the first or the last, does something else than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from conformance import on_some_ranks, raises_mismatch

from kadril.transport.base import Transport
from kadril.world import World

Step = Callable[[Transport], object]


def odd_ones(world: World) -> Iterator[bool]:
    """Whether this rank is the odd one: in turn the first rank, and the last."""
    yield world.rank == 0
    yield world.rank == world.size - 1


def check(world: World, usual: Step, odd: Step, *texts: str) -> None:
    """Let one rank take another step than the others."""
    for is_odd in odd_ones(world):
        with raises_mismatch(world.transport, *texts):
            (odd if is_odd else usual)(world.transport)


def allreduce(*shape: int, dtype: torch.dtype = torch.float32, **options: object) -> Step:
    return lambda transport: transport.allreduce(torch.zeros(shape, dtype=dtype), **options)  # type: ignore[arg-type]


@on_some_ranks
def test_shapes_differ(world: World) -> None:
    check(world, allreduce(3), allreduce(4), "allreduce(float32[3], sum)", "allreduce(float32[4]")
    check(world, allreduce(2, 3), allreduce(3, 2), "float32[2, 3]", "float32[3, 2]")
    check(world, allreduce(), allreduce(1), "float32[]", "float32[1]")
    check(world, allreduce(100_000), allreduce(100_001), "float32[100000]", "float32[100001]")
    check(world, allreduce(0), allreduce(5), "float32[0]", "float32[5]")


@on_some_ranks
def test_dtypes_differ(world: World) -> None:
    check(world, allreduce(3), allreduce(3, dtype=torch.int32), "float32[3]", "int32[3]")
    check(world, allreduce(3), allreduce(3, dtype=torch.float64), "float32[3]", "float64[3]")


@on_some_ranks
def test_ops_and_scales_differ(world: World) -> None:
    check(world, allreduce(3), allreduce(3, op="max"), "sum)", "max)")
    check(world, allreduce(3), allreduce(3, prescale=0.5), "prescale=0.5")
    check(world, allreduce(3, postscale=2.0), allreduce(3, postscale=4.0), "postscale=")


@on_some_ranks
def test_roots_differ(world: World) -> None:
    def broadcast(root: int) -> Step:
        return lambda transport: transport.broadcast(torch.zeros(3), root)

    def reduce(root: int) -> Step:
        return lambda transport: transport.reduce(torch.zeros(3), root)

    check(world, broadcast(0), broadcast(1), "broadcast(float32[3], root=0)", "root=1")
    check(world, reduce(0), reduce(1), "reduce(float32[3], sum, root=0)", "root=1")


@on_some_ranks
def test_names_differ(world: World) -> None:
    check(world, allreduce(3, name="a"), allreduce(3, name="b"), "name='a'", "name='b'")
    check(world, allreduce(3, name="grad"), allreduce(3), "name='grad'")


@on_some_ranks
def test_two_tensors_in_another_order(world: World) -> None:
    # Same shapes, so without names this would be a silent swap.
    names = ["first", "second"] if world.rank else ["second", "first"]
    for name in names:
        with raises_mismatch(world.transport, "name='first'", "name='second'"):
            world.transport.allreduce(torch.zeros(3), name=name)


@on_some_ranks
def test_collectives_differ(world: World) -> None:
    zeros = torch.zeros(world.size)
    one = torch.zeros(1)
    ones = [1] * world.size
    steps: dict[str, Step] = {
        "allreduce": lambda transport: transport.allreduce(zeros.clone()),
        "reduce": lambda transport: transport.reduce(zeros.clone(), 0),
        "broadcast": lambda transport: transport.broadcast(zeros.clone(), 0),
        "allgatherv": lambda transport: transport.allgatherv(one, zeros.clone(), ones),
        "reduce_scatterv": lambda transport: transport.reduce_scatterv(zeros, one.clone(), ones),
        "alltoallv": lambda transport: transport.alltoallv(zeros, ones, zeros.clone(), ones),
        "exchange": lambda transport: transport.exchange([], []),
        "barrier": lambda transport: transport.barrier(),
    }
    for operation, step in steps.items():
        other = "barrier" if operation != "barrier" else "allreduce"
        check(world, step, steps[other], operation, other)


@on_some_ranks
def test_counts_differ(world: World) -> None:
    def allgatherv(counts: list[int]) -> Step:
        mine = torch.zeros(counts[world.rank])
        return lambda transport: transport.allgatherv(mine, torch.zeros(sum(counts)), counts)

    def reduce_scatterv(counts: list[int]) -> Step:
        mine = torch.zeros(counts[world.rank])
        return lambda transport: transport.reduce_scatterv(torch.zeros(sum(counts)), mine, counts)

    equal = [2] * world.size
    uneven = [3, 1, *equal[2:]]
    longer = [2, 3, *equal[2:]]
    for step in (allgatherv, reduce_scatterv):
        check(world, step(equal), step(uneven))
        check(world, step(equal), step(longer))


@on_some_ranks
def test_alltoallv_pairs_differ(world: World) -> None:
    # Each rank's own counts add up; only a look at both ends of a pair shows the difference.
    def step(extra_to: int | None, extra_from: int | None) -> None:
        sends, recvs = [2] * world.size, [2] * world.size
        if extra_to is not None:
            sends[extra_to] += 1
        if extra_from is not None:
            recvs[extra_from] += 1
        array, out = torch.ones(sum(sends)), torch.zeros(sum(recvs))
        world.transport.alltoallv(array, sends, out, recvs)
        assert out.tolist() == [1.0] * sum(recvs)

    with raises_mismatch(world.transport):
        step(1 if world.rank == 0 else None, None)  # rank 0 sends more than rank 1 expects
    with raises_mismatch(world.transport):
        step(None, 0 if world.rank == 1 else None)  # rank 1 expects more than rank 0 sends
    step(1 if world.rank == 0 else None, 0 if world.rank == 1 else None)


@on_some_ranks
def test_exchange_pairs_differ(world: World) -> None:
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def step(sends: list[torch.Tensor], recvs: list[torch.Tensor]) -> None:
        world.transport.exchange(
            [(after, memory) for memory in sends], [(before, memory) for memory in recvs]
        )

    three, four = torch.zeros(3), torch.zeros(4)
    is_first = world.rank == 0
    with raises_mismatch(world.transport):
        step([four if is_first else three], [torch.zeros(3)])  # longer than expected
    with raises_mismatch(world.transport):
        step([three], [] if is_first else [torch.zeros(3)])  # not expected at all
    with raises_mismatch(world.transport):
        step([] if is_first else [three], [torch.zeros(3)])  # expected, and not sent
    with raises_mismatch(world.transport):
        step([three, four] if is_first else [four, three], [torch.zeros(4), torch.zeros(3)])
    with raises_mismatch(world.transport):  # as many bytes, of another kind
        step([torch.zeros(3, dtype=torch.int32) if is_first else three], [torch.zeros(3)])
    step([three, four], [torch.zeros(3), torch.zeros(4)])


@on_some_ranks
def test_nothing_is_written_by_a_call_that_differs(world: World) -> None:
    array = torch.full((5000,), float(world.rank))
    with raises_mismatch(world.transport):
        world.transport.allreduce(array, "sum" if world.rank else "max")
    with raises_mismatch(world.transport):
        world.transport.broadcast(array, int(world.rank == 0))
    assert set(array.tolist()) == {float(world.rank)}


@on_some_ranks
def test_many_differences_in_a_row(world: World) -> None:
    for turn in range(20):
        with raises_mismatch(world.transport):
            world.transport.allreduce(torch.zeros(3), name=f"{turn}.{world.rank}")


@on_some_ranks
def test_long_names_are_told_apart(world: World) -> None:
    # Longer than any record of fixed size, and different at the end only.
    with raises_mismatch(world.transport):
        world.transport.allreduce(torch.zeros(3), name="layer." * 200 + str(world.rank == 0))
    world.transport.allreduce(torch.zeros(3), name="layer." * 200)


@on_some_ranks
def test_long_names_in_letters_of_many_bytes(world: World) -> None:
    """A message holds the beginning of a name; one that ended amid a letter was no text at all."""
    for start in ("", "a", "aa", "aaa"):
        for letter in ("\N{CHEQUERED FLAG}", "\N{CYRILLIC SMALL LETTER KA}", "\u91cd"):
            with raises_mismatch(world.transport, f"name='{start}{letter * 15}"):
                name = start + letter * 80 + str(world.rank == 0)
                world.transport.allreduce(torch.zeros(3), name=name)
