"""Work of disposable ranks while one of them is killed, stopped or late."""

from __future__ import annotations

import threading

import torch
from hvd_stage import check_works, enter

import kadril.torch as hvd
from kadril.errors import KadrilError
from kadril.testing import faults
from kadril.world import World


def describe(error: KadrilError) -> tuple[str, int | None]:
    """The type of an error and the rank it blames."""
    return type(error).__name__, getattr(error, "rank", None)


def wait_for_the_victim(world: World, victim: int) -> list[tuple[str, int | None]]:
    """Have ops of several kinds in flight that only the victim is missing from; then it dies.

    Returns what became of each, of one more that is submitted afterwards, and of a barrier.
    """
    enter(world)
    check_works("start")
    faults.mark("running")
    if world.rank == victim:
        faults.gate("never")
    rows = torch.ones(world.size, 2)
    handles = [hvd.allreduce_async(rows, name=str(i), op=hvd.Sum) for i in range(4)]
    handles += [
        hvd.grouped_allreduce_async([rows, rows], name="group"),
        hvd.allgather_async(rows, name="rows"),
        hvd.broadcast_async(rows, victim, name="root"),
        hvd.alltoall_async(rows, name="tokens"),
        hvd.reducescatter_async(rows, name="shard"),
        hvd.allreduce_async(rows),
    ]
    faults.mark("waiting")
    seen = []
    for handle in handles:
        seen.append(outcome_of(handle))
    try:
        hvd.allreduce(rows, name="afterwards")
    except KadrilError as error:
        seen.append(describe(error))
    try:
        hvd.barrier()
    except KadrilError as error:
        seen.append(describe(error))
    hvd.shutdown()  # returns, though a rank is gone
    return seen


def outcome_of(handle: int) -> tuple[str, int | None]:
    """Return what `synchronize` raises."""
    try:
        hvd.synchronize(handle)
    except KadrilError as error:
        return describe(error)
    return "nothing was raised", None


def work_without_end(world: World) -> None:
    """Sums under names that come again, with several in flight, until an error ends it."""
    enter(world)
    check_works("start")
    faults.mark("running")
    step = 0
    while True:
        handles = [
            hvd.allreduce_async(torch.full((count,), float(step)), name=str(count), op=hvd.Sum)
            for count in (1, 100, 30_000)
        ]
        for handle in handles:
            result = hvd.synchronize(handle)
            if result.unique().tolist() != [step * world.size]:
                raise AssertionError("a wrong result was returned as a good one")
        step += 1


def two_sets(world: World, num_steps: int) -> int:
    """Ranks 0 and 1 work without end; ranks 0 and 2 make some steps when a gate is opened."""
    enter(world)
    shared, other = hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])
    check_works("start")
    done = threading.Event()

    def work() -> None:
        while True:
            hvd.allreduce(torch.ones(20_000), name="x", op=hvd.Sum, process_set=shared)
            last = hvd.allreduce(
                torch.tensor([done.is_set()]), name="done", op=hvd.Max, process_set=shared
            )
            if last.item():
                return

    worker = threading.Thread(target=work, daemon=True)
    if world.rank in (0, 1):
        worker.start()
    faults.mark("running")
    if world.rank in (0, 2):
        faults.gate("go")
        for step in range(num_steps):
            check_works(f"step {step % 7}", other)
        faults.mark("progress")
        faults.gate("end")
    if world.rank == 0:
        done.set()
    if world.rank in (0, 1):
        worker.join(30.0)
    return num_steps


def exit_with_ops_in_flight(world: World) -> None:
    """Leave by the way of a normal exit."""
    enter(world)
    check_works("start")
    for i in range(3):
        hvd.allreduce_async(torch.ones(1000), name=f"only rank {world.rank}.{i}")
    raise SystemExit(3)


def join_with_a_victim(world: World, victim: int) -> tuple[str, int | None]:
    """All but the victim wait in join when it dies."""
    enter(world)
    check_works("start")
    faults.mark("running")
    if world.rank == victim:
        faults.gate("never")
    try:
        hvd.join()
    except KadrilError as error:
        return describe(error)
    return "nothing was raised", None
