"""Ranks that ask for different things under one name all learn of it, and can go on.

In each case one rank, the first or the last, asks for something else than the others. After each,
an op of another name works, and one of the same name.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hvd_stage import (
    check_works,
    on_ranks,
    raises_mismatch,
    until,
    with_peers,
    with_peers_on_shm,
    with_sets,
)

import kadril.torch as hvd
from kadril.errors import MismatchError
from kadril.world import World

Step = Callable[[], object]


def check(world: World, usual: Step, odd: Step, *texts: str) -> None:
    """Let one rank take another step than the others; then let all take the same."""
    for place in (0, world.size - 1):
        with raises_mismatch(*texts):
            (odd if world.rank == place else usual)()
        usual()


def allreduce(*shape: int, dtype: torch.dtype = torch.float32, **options: object) -> Step:
    return lambda: hvd.allreduce(torch.zeros(shape, dtype=dtype), name="grad", **options)  # type: ignore[arg-type]


@with_peers
def test_shapes(world: World) -> None:
    check(world, allreduce(17), allreduce(19), "grad", "17", "19", "allreduce")
    check(world, allreduce(11, 13), allreduce(13, 11), "11, 13", "13, 11")
    check(world, allreduce(), allreduce(1), "grad")
    check(world, allreduce(1, 6), allreduce(6), "grad")
    check(world, allreduce(100_000), allreduce(100_001), "100000", "100001")
    check(world, allreduce(0), allreduce(17), "17")


@with_peers
def test_dtypes(world: World) -> None:
    check(world, allreduce(3), allreduce(3, dtype=torch.int32), "float32", "int32", "grad")
    check(world, allreduce(3), allreduce(3, dtype=torch.float64), "float32", "float64")
    half = allreduce(3, compression=hvd.Compression.fp16)
    check(world, allreduce(3), half, "float32", "float16")
    check(
        world,
        allreduce(3, dtype=torch.float16),
        allreduce(3, dtype=torch.bfloat16),
        "float16",
        "bfloat16",
    )


@with_peers
def test_ops_and_scales(world: World) -> None:
    check(world, allreduce(3), allreduce(3, op=hvd.Sum), "average", "sum", "grad")
    check(world, allreduce(3, op=hvd.Min), allreduce(3, op=hvd.Max), "min", "max")
    check(world, allreduce(3, op=hvd.Product), allreduce(3, op=hvd.Adasum), "product", "adasum")
    check(
        world,
        allreduce(3, prescale_factor=0.25),
        allreduce(3, prescale_factor=0.75),
        "0.25",
        "0.75",
    )
    check(world, allreduce(3), allreduce(3, prescale_factor=0.75), "0.75")
    check(
        world, allreduce(3, postscale_factor=4.5), allreduce(3, postscale_factor=8.5), "4.5", "8.5"
    )
    # A factor on the other side is another request, though it makes no difference to a sum.
    check(world, allreduce(3, prescale_factor=0.75), allreduce(3, postscale_factor=0.75), "0.75")


@with_peers
def test_broadcast(world: World) -> None:
    def broadcast(
        root: int, *shape: int, dtype: torch.dtype = torch.float32, name: str = "weights"
    ) -> Step:
        return lambda: hvd.broadcast(torch.zeros(shape, dtype=dtype), root, name=name)

    check(world, broadcast(0, 3), broadcast(1, 3), "root", "0", "1", "weights", "broadcast")
    check(world, broadcast(0, 17), broadcast(0, 19), "17", "19")
    check(world, broadcast(1, 3), broadcast(1, 3, dtype=torch.int8), "float32", "int8")
    check(world, broadcast(0), broadcast(0, 1), "weights")


@with_peers
def test_allgather(world: World) -> None:
    def allgather(*shape: int, dtype: torch.dtype = torch.float32) -> Step:
        return lambda: hvd.allgather(torch.zeros(shape, dtype=dtype), name="rows")

    check(world, allgather(2, 17), allgather(2, 19), "17", "19", "rows", "allgather")
    check(world, allgather(17), allgather(17, 1), "17", "rows")
    check(world, allgather(0, 17), allgather(2, 19), "17", "19")
    check(world, allgather(2), allgather(2, dtype=torch.int64), "float32", "int64")


@with_peers
def test_alltoall(world: World) -> None:
    def alltoall(*shape: int, dtype: torch.dtype = torch.float32) -> Step:
        tensor = torch.zeros(world.size, *shape, dtype=dtype)
        return lambda: hvd.alltoall(tensor, name="tokens")

    check(world, alltoall(17), alltoall(19), "17", "19", "tokens", "alltoall")
    check(world, alltoall(), alltoall(1), "tokens")
    check(world, alltoall(2), alltoall(2, dtype=torch.bool), "float32", "bool")


@with_peers
def test_reducescatter(world: World) -> None:
    def scatter(*shape: int, dtype: torch.dtype = torch.float32, **options: object) -> Step:
        return lambda: hvd.reducescatter(
            torch.zeros(shape, dtype=dtype),
            name="shard",
            **options,  # type: ignore[arg-type]
        )

    check(world, scatter(17, 2), scatter(19, 2), "17", "19", "shard", "reducescatter")
    check(world, scatter(4, 17), scatter(4, 19), "17", "19")
    check(world, scatter(4), scatter(4, dtype=torch.float16), "float32", "float16")
    check(world, scatter(4), scatter(4, op=hvd.Sum), "average", "sum")
    check(world, scatter(4), scatter(4, prescale_factor=0.75), "0.75")


@with_peers
def test_groups(world: World) -> None:
    def group(*counts: int, dtype: torch.dtype = torch.float32, **options: object) -> Step:
        tensors = [torch.zeros(count, dtype=dtype) for count in counts]
        return lambda: hvd.grouped_allreduce(tensors, name="bucket", **options)  # type: ignore[arg-type]

    check(world, group(2, 3), group(2, 3, 5), "bucket", "2", "3")
    check(world, group(2, 17), group(2, 19), "bucket", "17", "19")
    check(world, group(2, 3), group(3, 2), "bucket")
    check(world, group(2), group(2, dtype=torch.float64), "float32", "float64")
    check(world, group(2, 3), group(2, 3, op=hvd.Sum), "average", "sum")


@with_peers_on_shm
def test_grouped_moves(world: World) -> None:
    def gather(*widths: int) -> Step:
        return lambda: hvd.grouped_allgather([torch.zeros(2, w) for w in widths], name="bucket")

    def scatter(*rows: int) -> Step:
        return lambda: hvd.grouped_reducescatter([torch.zeros(r) for r in rows], name="bucket")

    for step in (gather, scatter):
        check(world, step(17, 2), step(19, 2), "17", "19", "bucket")
        check(world, step(2, 3), step(2, 3, 4), "bucket")


@with_peers
def test_nothing_is_written_by_ops_that_differ(world: World) -> None:
    tensor = torch.full((500,), float(world.rank))
    with pytest.raises(MismatchError):
        hvd.allreduce_(tensor, name="x", op=hvd.Sum if world.rank else hvd.Max)
    with pytest.raises(MismatchError):
        hvd.broadcast_(tensor, int(world.rank == 0), name="x")
    with pytest.raises(MismatchError):
        hvd.grouped_allreduce_([tensor, torch.zeros(1 + (world.rank == 0))], name="x")
    assert tensor.unique().tolist() == [float(world.rank)]
    check_works("x")


@with_peers
def test_others_in_flight_are_not_harmed(world: World) -> None:
    """One request of many differs: that one fails, at its own handle, and no other."""
    handles = []
    for i in range(10):
        count = 4 if i == 5 and world.rank == 0 else 3
        handles.append(hvd.allreduce_async(torch.ones(count), name=str(i), op=hvd.Sum))
    for i, handle in enumerate(handles):
        if i == 5:
            with pytest.raises(MismatchError, match="5"):
                hvd.synchronize(handle)
        else:
            assert hvd.synchronize(handle).tolist() == [world.size] * 3


@with_peers
def test_a_name_that_was_known_differs_later(world: World) -> None:
    """Known names take a short way, on which a difference must be seen as well, and forgotten."""
    for turn in range(3):
        for _ in range(3):
            check_works("known")
        with raises_mismatch("known", "23"):
            count = 23 if world.rank == turn % world.size else 3
            hvd.allreduce(torch.ones(count), op=hvd.Sum, name="known")
        # All at once another shape: that is no difference.
        assert hvd.allreduce(torch.ones(5), op=hvd.Sum, name="known").sum() == 5 * world.size


@with_peers_on_shm
def test_many_differences_in_a_row(world: World) -> None:
    for turn in range(20):
        with pytest.raises(MismatchError, match="odd"):
            hvd.allreduce(torch.ones(2 + world.rank), name=f"odd {turn % 3}")
    check_works("odd 1")


@with_peers
def test_the_error_says_what_each_rank_asked_for(world: World) -> None:
    with pytest.raises(MismatchError) as caught:
        hvd.allreduce(torch.ones(17 + world.rank), name="each")
    assert sorted(caught.value.calls) == list(range(world.size))
    for rank, call in caught.value.calls.items():
        assert str(17 + rank) in call
    check_works("each")


@with_peers
def test_poll_of_a_handle_that_failed(world: World) -> None:
    """True means that synchronize does not block; it raises then."""
    handle = hvd.allreduce_async(torch.ones(2 + world.rank), name="x")
    assert until(lambda: hvd.poll(handle))
    with pytest.raises(MismatchError):
        hvd.synchronize(handle)
    check_works("x")


@on_ranks(3, 4, transports=("shm",), process_sets="dynamic")
def test_in_a_process_set(world: World) -> None:
    """The members alone learn of it, by their ranks in the world."""
    members = [1, 2]
    pair = hvd.add_process_set(members)
    if world.rank in members:
        with pytest.raises(MismatchError) as caught:
            hvd.allreduce(torch.ones(17 + world.rank), name="x", process_set=pair)
        assert sorted(caught.value.calls) == members
        check_works("x", pair)
    else:
        with pytest.raises(ValueError, match=r"(?i)process ?set"):
            hvd.allreduce(torch.ones(17), name="x", process_set=pair)
    check_works("x")


@with_sets
def test_process_sets_that_differ(world: World) -> None:
    mine = [0] if world.rank == 0 else [1]
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.add_process_set(mine)
    assert isinstance(caught.value, MismatchError)
    for text in ("[0]", "[1]"):
        assert text in str(caught.value), str(caught.value)
    check_works("after")
    agreed = hvd.add_process_set([1])
    if agreed.included():
        check_works("in the set", agreed)
    hvd.barrier()
