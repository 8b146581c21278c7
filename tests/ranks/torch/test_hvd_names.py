"""Names: requests meet by name, whatever the order, the thread, or the kind of another."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
from exact import same
from hvd_model import given, reduced
from hvd_stage import check_works, everywhere, on_shm, until, with_peers, with_peers_on_shm

import kadril.torch as hvd
from kadril.world import World


def shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@everywhere
def test_every_rank_in_an_order_of_its_own(world: World) -> None:
    # Shapes differ from name to name, so that what meets under a wrong name cannot go unseen.
    for turn in range(4):
        order = shuffled(20, 100 * turn + world.rank)
        handles = {
            i: hvd.allreduce_async(
                given("float32", "sum", world.rank, i + 1), name=f"layer.{i}", op=hvd.Sum
            )
            for i in order
        }
        for i in shuffled(20, 100 * turn + world.rank + 50):
            expected = reduced("float32", "sum", range(world.size), i + 1)
            assert same(hvd.synchronize(handles[i]), expected), (turn, i)


@with_peers
def test_opposite_orders_one_by_one(world: World) -> None:
    """Each rank waits first for what it has submitted first, which others submit last."""
    handles: dict[str, int] = {}
    names = ["a", "b"] if world.rank == 0 else ["b", "a"]
    for name in names:
        handles[name] = hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum)
    for name in names:
        assert hvd.synchronize(handles[name]).tolist() == [world.size] * 2


@everywhere
def test_one_name_for_all_kinds_at_once(world: World) -> None:
    size, rank = world.size, world.rank
    rows = torch.full((size, 2), float(rank + 1))
    total = float(sum(range(1, size + 1)))
    starts: dict[str, Callable[[], int]] = {
        "allreduce": lambda: hvd.allreduce_async(rows, name="x", op=hvd.Sum),
        "grouped_allreduce": lambda: hvd.grouped_allreduce_async([rows], name="x", op=hvd.Sum),
        "allgather": lambda: hvd.allgather_async(rows, name="x"),
        "grouped_allgather": lambda: hvd.grouped_allgather_async([rows], name="x"),
        "broadcast": lambda: hvd.broadcast_async(rows, 0, name="x"),
        "alltoall": lambda: hvd.alltoall_async(rows, name="x"),
        "reducescatter": lambda: hvd.reducescatter_async(rows, name="x", op=hvd.Sum),
        "grouped_reducescatter": lambda: hvd.grouped_reducescatter_async(
            [rows], name="x", op=hvd.Sum
        ),
    }
    kinds = list(starts)
    random.Random(rank).shuffle(kinds)
    handles = {kind: starts[kind]() for kind in kinds}
    results = {kind: hvd.synchronize(handle) for kind, handle in handles.items()}
    assert results["allreduce"].tolist() == [[total] * 2] * size
    assert results["grouped_allreduce"][0].tolist() == [[total] * 2] * size
    assert results["allgather"].shape == (size * size, 2)
    assert results["grouped_allgather"][0].shape == (size * size, 2)
    assert results["broadcast"].tolist() == [[1.0] * 2] * size
    assert results["alltoall"][0].tolist() == [[r + 1.0] * 2 for r in range(size)]
    assert results["reducescatter"].tolist() == [[total] * 2]
    assert results["grouped_reducescatter"][0].tolist() == [[total] * 2]


@everywhere
def test_a_name_is_free_again_with_another_shape_dtype_and_op(world: World) -> None:
    size = world.size
    for _ in range(3):
        assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [size] * 3
        assert hvd.allreduce(torch.ones(2, 2), name="x").tolist() == [[1.0] * 2] * 2
        ints = torch.full((5,), world.rank)
        assert hvd.allreduce(ints, name="x", op=hvd.Max).tolist() == [size - 1] * 5
        doubled = hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum, prescale_factor=2.0)
        assert doubled.tolist() == [2 * size] * 3
        for root in range(size):
            mine = torch.full((2,), world.rank)
            assert hvd.broadcast(mine, root, name="x").tolist() == [root] * 2


@on_shm
def test_a_name_comes_again_and_again(world: World) -> None:
    for step in range(200):
        tensor = torch.full((4,), float(step + world.rank))
        result = hvd.allreduce(tensor, name="loss", op=hvd.Sum)
        assert result[3].item() == step * world.size + sum(range(world.size))


@with_peers_on_shm
def test_ranks_that_are_not_in_step(world: World) -> None:
    """A name is free on a rank when it has its result, though others do not have theirs yet."""
    results = []
    for step in range(100):
        handle = hvd.allreduce_async(torch.full((3,), float(step)), name="x", op=hvd.Sum)
        if step % world.size == world.rank:
            assert until(lambda handle=handle: hvd.poll(handle))  # type: ignore[misc]
        results.append(hvd.synchronize(handle))
    # Looked at only now: no result may be changed by a later op of its name.
    for step, result in enumerate(results):
        assert result.tolist() == [step * world.size] * 3


@everywhere
def test_the_same_name_twice_in_flight(world: World) -> None:
    """A world of one may have finished the first before the second comes; then that is allowed."""
    if world.size > 1 and world.rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        for second in (
            lambda: hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum),
            lambda: hvd.allreduce_async_(torch.ones(5), name="twice"),
            lambda: hvd.allreduce(torch.ones(3), name="twice"),
        ):
            with pytest.raises(ValueError, match="twice"):
                second()
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [world.size] * 3
    check_works("twice")


@with_peers_on_shm
def test_the_same_name_twice_in_flight_for_every_kind(world: World) -> None:
    rows = torch.ones(world.size, 2)
    kinds: list[Callable[[], int]] = [
        lambda: hvd.grouped_allreduce_async([rows, rows], name="n"),
        lambda: hvd.allgather_async(rows, name="n"),
        lambda: hvd.grouped_allgather_async([rows], name="n"),
        lambda: hvd.broadcast_async(rows, 0, name="n"),
        lambda: hvd.alltoall_async(rows, name="n"),
        lambda: hvd.reducescatter_async(rows, name="n"),
        lambda: hvd.grouped_reducescatter_async([rows], name="n"),
    ]
    for start in kinds:
        if world.rank == 0:
            handle = start()
            with pytest.raises(ValueError, match="n"):
                start()
            hvd.barrier()
        else:
            hvd.barrier()
            handle = start()
        assert hvd.synchronize(handle) is not None
        hvd.synchronize(start())


@with_peers
def test_a_barrier_overtakes_what_is_not_there_everywhere(world: World) -> None:
    early = world.rank == 0
    handles = []
    if early:
        handles = [hvd.allreduce_async(torch.ones(2), name=str(i), op=hvd.Sum) for i in range(5)]
    for _ in range(3):
        hvd.barrier()
    if not early:
        handles = [hvd.allreduce_async(torch.ones(2), name=str(i), op=hvd.Sum) for i in range(5)]
    assert [hvd.synchronize(handle).tolist() for handle in handles] == [[world.size] * 2] * 5


@with_peers
def test_a_later_op_overtakes_an_earlier_one(world: World) -> None:
    if world.rank == 0:
        late = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    for turn in range(10):
        check_works(f"overtakes {turn}")
    if world.rank != 0:
        late = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    assert hvd.synchronize(late).tolist() == [world.size] * 2


@on_shm
def test_two_thousand_names(world: World) -> None:
    for turn in range(2):  # the second time they are all known
        handles = {
            i: hvd.allreduce_async_(torch.full((2,), float(i)), name=f"p{i}", op=hvd.Sum)
            for i in shuffled(2000, turn + 10 * world.rank)
        }
        for i in range(2000):
            assert hvd.synchronize(handles[i]).tolist() == [i * world.size] * 2


@everywhere
def test_names_of_any_letters_and_length(world: World) -> None:
    names = [
        "кадриль.вес",
        "重み/0",
        "naïve \t tab\nnew line",
        "x" * 300,
        "x" * 299 + "y",
        "\N{CHEQUERED FLAG}" * 40,
        "nul\0nul",
        "nul\0other",
        "a.b_0of1",
        "'quoted' \"twice\" {braces} %s",
    ]
    order = shuffled(len(names), world.rank)
    handles = {
        i: hvd.allreduce_async(torch.full((2,), float(i)), name=names[i], op=hvd.Sum) for i in order
    }
    for i in range(len(names)):
        assert hvd.synchronize(handles[i]).tolist() == [i * world.size] * 2, names[i]
    # Ops that run together go by the name of one of them; alone, each goes by its own.
    for name in names:
        check_works(name)


@on_shm
def test_a_group_and_its_members_have_names_of_their_own(world: World) -> None:
    """Members have names made of the group's; a tensor with such a name is not one of them."""
    pair = [torch.ones(2), torch.ones(3)]
    group = hvd.grouped_allreduce_async(pair, name="g", op=hvd.Sum)
    others = [
        hvd.allreduce_async(torch.ones(4), name=name, op=hvd.Sum)
        for name in ("g", "g_0of2", "g_1of2", "grouped_allreduce.g_0of2", "g.0", "group.g")
    ]
    assert [x.tolist() for x in hvd.synchronize(group)] == [[world.size] * 2, [world.size] * 3]
    assert [hvd.synchronize(h).tolist() for h in others] == [[world.size] * 4] * 6


@everywhere
def test_several_threads_submit(world: World) -> None:
    results: dict[tuple[int, int], list[float]] = {}

    def work(number: int) -> None:
        for turn in shuffled(10, world.rank * 10 + number):
            value = torch.full((3,), 100.0 * number + turn)
            handle = hvd.allreduce_async_(value, name=f"{number}.{turn}", op=hvd.Sum)
            handles[number, turn] = handle
        for turn in range(10):
            results[number, turn] = hvd.synchronize(handles[number, turn]).tolist()

    handles: dict[tuple[int, int], int] = {}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert results == {
        (number, turn): [(100 * number + turn) * world.size] * 3
        for number in range(4)
        for turn in range(10)
    }


@with_peers
def test_blocking_calls_of_threads_that_wait_for_each_other(world: World) -> None:
    """Such calls would deadlock in program order: each rank's first waits for another's last."""
    names = [f"t{i}" for i in range(4)]
    if world.rank % 2:
        names.reverse()
    results: list[list[float]] = []

    def work(name: str) -> None:
        results.append(hvd.allreduce(torch.ones(2), name=name, op=hvd.Sum).tolist())

    threads = []
    for name in names:
        threads.append(threading.Thread(target=work, args=(name,)))
        threads[-1].start()
    for thread in threads:
        thread.join(30.0)
    assert results == [[world.size] * 2] * 4
