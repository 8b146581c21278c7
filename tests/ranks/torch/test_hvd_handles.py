"""Handles: poll, synchronize, and what is not a handle."""

from __future__ import annotations

import threading

import pytest
import torch
from hvd_stage import everywhere, on_shm, until, with_peers, with_peers_on_shm

import kadril.torch as hvd
from kadril.world import World


@with_peers
def test_poll_is_asynchronous(world: World) -> None:
    # The barrier comes after the look of rank 0 and before the others submit.
    if world.rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="polled", op=hvd.Sum)
        assert hvd.poll(handle) is False
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), name="polled", op=hvd.Sum)
    assert until(lambda: hvd.poll(handle))
    assert hvd.poll(handle) is True
    assert hvd.synchronize(handle).tolist() == [world.size] * 3


@everywhere
def test_poll_of_every_kind(world: World) -> None:
    ones, rows = torch.ones(4), torch.ones(world.size, 2)
    starts = [
        hvd.allreduce_async(ones),
        hvd.allreduce_async_(ones.clone()),
        hvd.grouped_allreduce_async([ones, rows]),
        hvd.grouped_allreduce_async_([ones.clone(), rows.clone()]),
        hvd.allgather_async(ones),
        hvd.grouped_allgather_async([ones, rows]),
        hvd.broadcast_async(ones, 0),
        hvd.broadcast_async_(ones.clone(), 0),
        hvd.alltoall_async(rows),
        hvd.reducescatter_async(rows),
        hvd.grouped_reducescatter_async([rows, ones]),
    ]
    assert all(isinstance(handle, int) for handle in starts)
    assert len(set(starts)) == len(starts)
    for handle in starts:
        assert until(lambda handle=handle: hvd.poll(handle))  # type: ignore[misc]
    for handle in reversed(starts):
        assert hvd.synchronize(handle) is not None


@on_shm
def test_synchronize_again_gives_nothing(world: World) -> None:
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [world.size] * 2
    assert hvd.synchronize(handle) is None
    assert hvd.synchronize(10**9) is None
    hvd.barrier()


@on_shm
def test_poll_of_what_is_no_handle(world: World) -> None:
    for unknown in (10**9, -1):
        with pytest.raises(ValueError, match=str(unknown)):
            hvd.poll(unknown)
    handle = hvd.allreduce_async(torch.ones(2))
    hvd.synchronize(handle)
    with pytest.raises(ValueError, match=str(handle)):
        hvd.poll(handle)
    hvd.barrier()


@on_shm
def test_handles_in_any_order(world: World) -> None:
    handles = [
        hvd.allreduce_async(torch.full((2,), float(i)), name=str(i), op=hvd.Sum) for i in range(30)
    ]
    for i in [*range(0, 30, 2), *reversed(range(1, 30, 2))]:
        assert hvd.synchronize(handles[i]).tolist() == [i * world.size] * 2


@on_shm
def test_a_tensor_that_nobody_keeps_stays_alive(world: World) -> None:
    handles = []
    for i in range(50):
        handles.append(hvd.allreduce_async_(torch.full((1000,), float(i)), name=str(i), op=hvd.Sum))
        torch.zeros(1000).fill_(-1.0)  # takes the memory of any tensor that was let go
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).unique().tolist() == [i * world.size]


@on_shm
def test_a_handle_that_is_never_synchronized_does_no_harm(world: World) -> None:
    for i in range(20):
        handle = hvd.allreduce_async(torch.ones(10), name=f"forgotten {i}")
        assert until(lambda handle=handle: hvd.poll(handle))  # type: ignore[misc]
    assert hvd.allreduce(torch.ones(1), name="forgotten 1", op=hvd.Sum).item() == world.size


@with_peers_on_shm
def test_several_threads_wait_at_once(world: World) -> None:
    results: dict[int, list[float]] = {}

    def wait(place: int, handle: int) -> None:
        results[place] = hvd.synchronize(handle).tolist()

    def start(place: int) -> int:
        return hvd.allreduce_async(torch.full((2,), float(place)), name=str(place), op=hvd.Sum)

    if world.rank != 0:
        hvd.barrier()  # so that the threads of rank 0 have something to wait for
    handles = [start(place) for place in range(6)]
    threads = [threading.Thread(target=wait, args=pair) for pair in enumerate(handles)]
    for thread in threads:
        thread.start()
    if world.rank == 0:
        hvd.barrier()
    for thread in threads:
        thread.join(20.0)
    assert results == {place: [place * world.size] * 2 for place in range(6)}


@everywhere
def test_barrier_waits_for_all(world: World) -> None:
    # What was sent before a barrier has come when it is behind everyone.
    for _ in range(5):
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(1), name="x", op=hvd.Sum)
        hvd.barrier()
        # Submitted on every rank before the barrier: so nobody has to be waited for any more.
        assert until(lambda handle=handle: hvd.poll(handle))  # type: ignore[misc]
        assert hvd.synchronize(handle).item() == world.size
