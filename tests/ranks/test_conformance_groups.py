"""Groups made of groups, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from conformance import TRANSPORTS, on_all_transports, on_some_ranks

from kadril.errors import ClosedError, ForkedError, PeerLost, Revoked, Stalled
from kadril.testing import ranks
from kadril.transport.base import Transport
from kadril.world import World

kept: list[Transport] = []


def sum_of_ranks(transport: Transport, world: World) -> list[float]:
    """World ranks of all members, each at its own place."""
    places = torch.zeros(transport.size)
    places[transport.rank] = world.rank
    transport.allreduce(places)
    return places.tolist()


@on_all_transports
def test_split_by_color(world: World) -> None:
    group = world.transport.split(world.rank % 2)
    assert group is not None
    members = [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
    if world.transport.kind != "tiered":  # whose groups may lie on one host
        assert group.kind == world.transport.kind
    assert (group.rank, group.size) == (members.index(world.rank), len(members))
    assert group.world_ranks == tuple(members)
    assert sum_of_ranks(group, world) == members
    world.transport.barrier()
    group.close()


@on_all_transports
def test_split_orders_by_key_and_then_by_rank(world: World) -> None:
    backwards = world.transport.split(7, key=-world.rank)
    assert backwards is not None
    assert backwards.world_ranks == tuple(reversed(range(world.size)))
    assert sum_of_ranks(backwards, world) == list(reversed(range(world.size)))
    alike = world.transport.split(-3, key=2**62)
    assert alike is not None
    assert alike.world_ranks == tuple(range(world.size))
    backwards.close()
    alike.close()


@on_all_transports
def test_split_without_color_takes_no_part(world: World) -> None:
    last = world.size - 1
    group = world.transport.split(None if world.rank == last else 0)
    if world.rank == last:
        assert group is None
    else:
        assert group is not None
        assert group.world_ranks == tuple(range(last))
        group.barrier()
        group.close()
    assert world.transport.split(None) is None
    # Ranks that sat out have made fewer groups; the next group is of all of them nevertheless.
    whole = world.transport.split(0)
    assert whole is not None
    assert sum_of_ranks(whole, world) == list(range(world.size))
    whole.close()


@on_all_transports
def test_groups_of_groups(world: World) -> None:
    reverse = world.transport.split(0, key=-world.rank)
    assert reverse is not None
    half = reverse.split(reverse.rank // 2)
    assert half is not None
    assert half.world_ranks == tuple(
        rank for rank in reverse.world_ranks if (world.size - 1 - rank) // 2 == reverse.rank // 2
    )
    assert sum_of_ranks(half, world) == list(half.world_ranks)
    half.close()
    assert sum_of_ranks(reverse, world) == list(reverse.world_ranks)  # outlives its part
    reverse.close()


@on_all_transports
def test_calls_of_several_groups_do_not_mix(world: World) -> None:
    one, other = world.transport.split(0), world.transport.split(0, key=-world.rank)
    assert one is not None
    assert other is not None
    for turn in range(10):
        a, b, c = torch.full((1000,), 1.0), torch.full((1000,), 10.0), torch.full((1000,), 100.0)
        # The order differs from rank to rank only where the groups do.
        one.allreduce(a)
        other.allreduce(b)
        world.transport.allreduce(c)
        assert (a[turn], b[turn], c[turn]) == (world.size, 10 * world.size, 100 * world.size)
    one.close()
    other.close()


@on_all_transports
def test_a_closed_group_says_so(world: World) -> None:
    group = world.transport.split(0)
    assert group is not None
    group.barrier()
    group.close()
    group.close()  # again is allowed
    with pytest.raises(ClosedError):
        group.allreduce(torch.zeros(3))
    with pytest.raises(ClosedError):
        group.barrier()
    with pytest.raises(ClosedError):
        group.split(0)
    with pytest.raises(ClosedError):
        group.allgather_bytes(b"1")
    world.transport.barrier()


@on_all_transports
def test_many_groups_after_each_other(world: World) -> None:
    for turn in range(12):
        group = world.transport.split(turn % 2 if world.rank else 0)
        assert group is not None
        group.barrier()
        group.close()


@on_some_ranks
def test_a_rank_that_closes_is_lost_to_those_who_wait(world: World) -> None:
    group = world.transport.split(0)
    assert group is not None
    group.barrier()
    if world.rank == 1:
        group.close()
    else:
        for _ in range(2):  # and stays lost
            with pytest.raises(PeerLost) as caught:
                group.allreduce(torch.zeros(5000), name="late")
            assert caught.value.rank == 1
            assert caught.value.operation == "allreduce"
    world.transport.barrier()
    group.close()


@on_some_ranks
def test_a_rank_may_close_as_soon_as_its_own_calls_are_done(world: World) -> None:
    # A rank is done with its last call before the others are; its leaving must not disturb them.
    for _ in range(8):
        group = world.transport.split(0)
        assert group is not None
        array = torch.full((40_000,), float(world.rank + 1))
        group.allreduce(array)
        group.close()
        assert array[-1] == sum(range(1, world.size + 1))


@on_some_ranks
def test_revoke_wakes_all(world: World) -> None:
    group = world.transport.split(0)
    assert group is not None
    group.barrier()
    if world.rank == 0:
        group.revoke("the test wants it")
    for _ in range(2):
        with pytest.raises(Revoked) as caught:
            group.barrier()
        assert caught.value.rank == 0
    world.transport.barrier()
    group.close()


@on_some_ranks
def test_revoke_from_another_thread_wakes_all_that_wait(world: World) -> None:
    group = world.transport.split(0)
    assert group is not None
    kept.append(group)
    group.barrier()
    if world.rank == 0:
        # Before the others wait, or while they do: both must end in the same way.
        threading.Timer(0.2, group.revoke).start()
    if world.rank != world.size - 1:
        with pytest.raises(Revoked) as caught:
            group.barrier()
        assert caught.value.rank == 0
    world.transport.barrier()
    # Also who comes later, and was busy elsewhere. Over gloo it may still meet what rank 0 had sent
    # before it gave up, if it comes within a tenth of a second; the next call ends in any case.
    with pytest.raises(Revoked):  # noqa: PT012
        group.barrier()
        group.barrier()


@on_some_ranks
def test_an_interrupted_rank_does_not_leave_the_others_waiting(world: World) -> None:
    # What Ctrl-C does: an exception out of a signal handler, in the middle of a wait.
    group = world.transport.split(0)
    assert group is not None
    kept.append(group)
    group.barrier()
    if world.rank == 1:
        world.transport.barrier()
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if world.rank == 0:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            group.barrier()
        assert time.monotonic() - began < 2.0
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(Revoked) as caught:
        group.barrier()
    assert caught.value.rank == 0
    world.transport.barrier()


@ranks(3, transports=TRANSPORTS, patience=0.5, stall_warning=0.2)
def test_a_rank_that_does_not_come_is_named(world: World) -> None:
    group = world.transport.split(0)
    assert group is not None
    kept.append(group)  # a group that is dropped is a group that is left
    group.barrier()
    if world.rank == 1:
        return
    with pytest.raises(Stalled) as caught:
        group.allreduce(torch.zeros(3), name="grad")
    assert (caught.value.rank, caught.value.state) == (1, "late")
    assert (caught.value.operation, caught.value.name) == ("allreduce", "grad")
    # Whoever came a moment later is told by the other one, before its own patience is over.
    assert 0 < caught.value.elapsed < 5.0
    with pytest.raises(Stalled):  # and stays so, without another wait
        group.barrier()


@on_all_transports
def test_threads_are_served_one_after_the_other(world: World) -> None:
    # gloo itself gives wrong sums when threads share a group. Which calls of the ranks meet is up
    # to the threads; but an array has one value throughout, so a result that has two was mixed.
    results: list[list[float]] = []

    def work(number: int) -> None:
        for turn in range(15):
            array = torch.full((40_000,), float(100 * number + turn))
            world.transport.allreduce(array)
            results.append(array.unique().tolist())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(values) for values in results] == [1] * 45
    given = sum(100 * number + turn for number in range(3) for turn in range(15))
    assert sum(values[0] for values in results) == world.size * given


@on_all_transports
def test_a_forked_child_is_no_rank(world: World) -> None:
    """A group of one answered a child, or in a closed group, since it had nobody to ask."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        calls = (world.transport.barrier, lambda: world.transport.allgather_bytes(b"1"))
        for call in calls:
            text = "nothing was raised"
            try:
                call()
            except ForkedError:
                text = "ForkedError"
            except BaseException as error:
                text = repr(error)
            os.write(writer, f"{text};".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "ForkedError;ForkedError;"
    assert os.waitpid(child, 0)[1] == 0
    world.transport.barrier()  # the parent is unharmed
