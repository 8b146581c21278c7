"""join: ranks that have run out of data wait for the others, and take part in their reductions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hvd_stage import (
    SHM,
    check_works,
    everywhere,
    on_ranks,
    on_shm,
    with_peers,
    with_peers_on_shm,
)

import kadril.torch as hvd
from kadril.errors import PeerError
from kadril.testing import ranks
from kadril.world import World


@everywhere
def test_uneven_numbers_of_steps(world: World) -> None:
    """Rank r takes r + 1 steps: each is the sum over the ranks that are still there."""
    size, rank = world.size, world.rank
    for step in range(rank + 1):
        active = range(step, size)
        result = hvd.allreduce(torch.full((3,), float(rank + 1)), name="loss", op=hvd.Sum)
        assert result.tolist() == [sum(other + 1 for other in active)] * 3
    # The last rank's last step needs that all others have joined, so it is the last to join.
    assert hvd.join() == size - 1
    check_works("loss")


@everywhere
def test_steps_in_the_other_direction(world: World) -> None:
    size, rank = world.size, world.rank
    for step in range(size - rank):
        active = range(size - step)
        handle = hvd.allreduce_async_(torch.full((3,), float(rank + 1)), name="x", op=hvd.Sum)
        assert hvd.synchronize(handle).tolist() == [sum(other + 1 for other in active)] * 3
    assert hvd.join() == 0


@everywhere
def test_an_average_is_over_the_full_size(world: World) -> None:
    size, rank = world.size, world.rank
    if rank != 0 or size == 1:
        active = max(size - 1, 1)
        for dtype in (torch.float32, torch.float64, torch.int64):
            tensor = torch.full((2,), 12, dtype=dtype)
            expected = 12 * active / size if dtype.is_floating_point else 12 * active // size
            assert hvd.allreduce(tensor, name="x").tolist() == [expected] * 2
    assert hvd.join() in range(size)


@everywhere
def test_min_max_and_product_ignore_who_has_joined(world: World) -> None:
    """Horovod has them give zeros, which are the least of positive numbers, and end products."""
    size, rank = world.size, world.rank
    if rank != 0 or size == 1:
        active = range(1, size) if size > 1 else range(1)
        mine = torch.tensor([rank + 2.0, -(rank + 2.0)])
        least = hvd.allreduce(mine, name="min", op=hvd.Min)
        assert least.tolist() == [active[0] + 2.0, -(active[-1] + 2.0)]
        largest = hvd.allreduce(mine, name="max", op=hvd.Max)
        assert largest.tolist() == [active[-1] + 2.0, -(active[0] + 2.0)]
        product = hvd.allreduce(torch.full((2,), 3.0), name="product", op=hvd.Product)
        assert product.tolist() == [3.0 ** len(active)] * 2
        flags = hvd.allreduce(torch.tensor([True, False]), name="flags", op=hvd.Product)
        assert flags.tolist() == [True, False]
        ints = hvd.allreduce(torch.full((2,), rank + 5), name="ints", op=hvd.Min)
        assert ints.tolist() == [active[0] + 5] * 2
    hvd.join()


@on_shm
def test_every_dtype_with_a_joined_rank(world: World) -> None:
    size, rank = world.size, world.rank
    if rank != size - 1 or size == 1:
        active = max(size - 1, 1)
        for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64"):
            dtype = getattr(torch, name)
            result = hvd.allreduce(torch.full((5,), 3, dtype=dtype), name=name, op=hvd.Sum)
            assert result.tolist() == [3 * active] * 5, name
        scaled = hvd.allreduce(
            torch.ones(2), name="scaled", op=hvd.Sum, prescale_factor=2.0, postscale_factor=4.0
        )
        assert scaled.tolist() == [8.0 * active] * 2
    hvd.join()


@on_shm
def test_groups_and_many_tensors_with_a_joined_rank(world: World) -> None:
    size, rank = world.size, world.rank
    if rank != 0 or size == 1:
        active = max(size - 1, 1)
        pair = [torch.ones(2), torch.ones(3, dtype=torch.int64)]
        results = hvd.grouped_allreduce(pair, name="group", op=hvd.Sum)
        assert [x.tolist() for x in results] == [[active] * 2, [active] * 3]
        handles = [
            hvd.allreduce_async_(torch.full((i + 1,), 1.0), name=str(i), op=hvd.Sum)
            for i in range(20)
        ]
        for i, handle in enumerate(handles):
            assert hvd.synchronize(handle).tolist() == [active] * (i + 1)
    hvd.join()


@everywhere
def test_joins_again_and_again(world: World) -> None:
    size, rank = world.size, world.rank
    for epoch in range(4):
        last = epoch % size
        for _ in range(3 if rank == last else 1):
            hvd.allreduce(torch.ones(1), name="loss")
        assert hvd.join() == last
        check_works("between")


@with_peers
def test_ops_without_a_name_are_in_step_after_a_join(world: World) -> None:
    """Ranks have made different numbers of them; counted on, no two would meet any more."""
    for _ in range(world.rank * 2 + 1):
        hvd.allreduce(torch.ones(3))
    assert hvd.join() == world.size - 1
    for _ in range(3):
        check_works()
    assert len(hvd.allgather(torch.ones(1))) == world.size


@with_peers
def test_the_rank_that_joins_last_is_the_same_for_all(world: World) -> None:
    lasts = [hvd.join() for _ in range(5)]
    everyones = hvd.allgather(torch.tensor([lasts]))
    assert all(row == lasts for row in everyones.tolist())
    assert all(last in range(world.size) for last in lasts)


@with_peers
def test_ops_that_cannot_do_without_a_rank(world: World) -> None:
    """Zeros are no rows, and a root that has joined has nothing to give."""
    rows = torch.ones(world.size, 2)
    if world.rank != 0:
        hvd.allreduce(torch.ones(1), name="rank 0 has joined")
        calls = {
            "allgather": lambda: hvd.allgather(rows, name="x"),
            "broadcast": lambda: hvd.broadcast(rows, 1, name="x"),
            "alltoall": lambda: hvd.alltoall(rows, name="x"),
            "reducescatter": lambda: hvd.reducescatter(rows, name="x"),
            "grouped_allgather": lambda: hvd.grouped_allgather([rows], name="x"),
        }
        for kind, call in calls.items():
            with pytest.raises(hvd.HorovodInternalError) as caught:
                call()
            assert "join" in str(caught.value), kind
            assert kind.removeprefix("grouped_") in str(caught.value), kind
            # The next op works, with the joined rank still joined.
            result = hvd.allreduce(torch.ones(2), name="next", op=hvd.Sum)
            assert result.tolist() == [world.size - 1] * 2
    assert hvd.join() in range(world.size)
    assert len(hvd.allgather(rows, name="x")) == world.size**2


@with_peers
def test_an_op_that_waits_when_a_rank_joins(world: World) -> None:
    """Submitted before the join, by all but the rank that joins: the join completes it."""
    if world.rank == 0:
        hvd.barrier()
    else:
        handle = hvd.allreduce_async(torch.ones(2), name="waiting", op=hvd.Sum)
        hvd.barrier()
        assert hvd.synchronize(handle).tolist() == [world.size - 1] * 2
    hvd.join()


@with_peers
def test_an_op_that_cannot_join_and_waits_when_a_rank_joins(world: World) -> None:
    if world.rank == 0:
        hvd.barrier()
    else:
        handle = hvd.allgather_async(torch.ones(2), name="waiting")
        hvd.barrier()
        with pytest.raises(hvd.HorovodInternalError, match="join"):
            hvd.synchronize(handle)
    hvd.join()
    check_works()


@with_peers_on_shm
def test_a_rank_joins_with_ops_of_its_own_in_flight(world: World) -> None:
    """Rank 0 waits in join; what it has submitted before is part of the sum, not zeros."""
    if world.rank == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="mine", op=hvd.Sum)
    else:
        check = hvd.allreduce(torch.ones(2), name="needs the join", op=hvd.Sum)
        assert check.tolist() == [world.size - 1] * 2
        handle = hvd.allreduce_async(torch.ones(2), name="mine", op=hvd.Sum)
        assert hvd.synchronize(handle).tolist() == [world.size] * 2
    hvd.join()
    if world.rank == 0:
        assert hvd.synchronize(handle).tolist() == [world.size] * 2


@with_peers
def test_mismatch_among_those_who_have_not_joined(world: World) -> None:
    if world.rank != 0 and world.size > 2:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(world.rank), name="differs")
        result = hvd.allreduce(torch.ones(2), name="differs", op=hvd.Sum)
        assert result.tolist() == [world.size - 1] * 2
    hvd.join()


@on_ranks(2, 3, process_sets="dynamic", patience=4.0)
def test_a_process_set_cannot_be_made_without_a_rank_that_has_joined(world: World) -> None:
    """Told at once, not when patience is over; and the engine lives on."""
    if world.rank != 0:
        hvd.allreduce(torch.ones(1), name="rank 0 has joined")
        with pytest.raises(hvd.HorovodInternalError, match="join") as caught:
            hvd.add_process_set([0])
        assert not isinstance(caught.value, PeerError)
        result = hvd.allreduce(torch.ones(2), name="next", op=hvd.Sum)
        assert result.tolist() == [world.size - 1] * 2
    hvd.join()
    check_works()


@on_ranks(2, transports=SHM, patience=0.8)
def test_patience_is_for_ranks_that_do_nothing(world: World) -> None:
    """Rank 0 waits in join for longer than its patience; but rank 1 goes on meanwhile."""
    if world.rank == 1:
        for _ in range(6):
            time.sleep(0.2)  # the work of a step
            hvd.allreduce(torch.ones(1), name="loss")
    assert hvd.join() == 1
    check_works()


@on_shm
def test_device_is_accepted(world: World) -> None:
    assert hvd.join(-1) in range(world.size)
    assert hvd.join(device=0) in range(world.size)


@ranks(4, transports=("tiered",), hosts="2+2")
def test_large_arrays_that_run_together_without_who_has_joined(
    world: World, tmp_path: Path
) -> None:
    """Over tiers large sums share one call, whose arrays all ranks must count alike."""
    hvd.init()
    path = tmp_path / f"{world.rank}.json"
    hvd.start_timeline(str(path))
    counts = (300_001, 280_000, 270_000)  # each more than 1 MiB
    if world.rank != 1:
        numbers = [torch.full((count,), float(world.rank + 1)) for count in counts]
        results = hvd.grouped_allreduce(numbers, name="large", op=hvd.Average)
        for result, count in zip(results, counts, strict=True):
            assert result.shape == (count,)
            assert result.eq((1 + 3 + 4) / 4).all()
    assert hvd.join() in (0, 2, 3)
    hvd.stop_timeline()
    if world.rank == 0:
        assert "TOGETHER_ALLREDUCE" in path.read_text()
    check_works("loss")
