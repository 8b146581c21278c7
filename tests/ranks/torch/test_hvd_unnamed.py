"""Ops without a name meet by their count, per kind and process set; drift is reported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from hvd_stage import (
    SHM,
    check_works,
    everywhere,
    on_ranks,
    raises_mismatch,
    until,
    with_peers,
    with_peers_on_shm,
    with_sets_on_shm,
)

import kadril.torch as hvd
from kadril.errors import Stalled
from kadril.world import World


@everywhere
def test_unnamed_ops_of_one_kind_keep_their_order(world: World) -> None:
    handles = [hvd.allreduce_async(torch.full((2,), float(i)), op=hvd.Sum) for i in range(12)]
    for i in reversed(range(12)):
        assert hvd.synchronize(handles[i]).tolist() == [i * world.size] * 2


@with_peers
def test_kinds_are_counted_apart(world: World) -> None:
    """Horovod counts all ops of a process together: one more of any kind shifts all the others."""
    tensor = torch.full((2,), float(world.rank))
    if world.rank == 0:
        gathers = [hvd.allgather_async(tensor) for _ in range(2)]
        reduces = [hvd.allreduce_async(tensor, op=hvd.Sum) for _ in range(3)]
    else:
        reduces = [hvd.allreduce_async(tensor, op=hvd.Sum) for _ in range(3)]
        gathers = [hvd.allgather_async(tensor) for _ in range(2)]
    total = sum(range(world.size))
    assert [hvd.synchronize(handle).tolist() for handle in reduces] == [[total] * 2] * 3
    assert [len(hvd.synchronize(handle)) for handle in gathers] == [2 * world.size] * 2


@with_peers_on_shm
def test_named_ops_do_not_count(world: World) -> None:
    handles = []
    if world.rank == 0:
        handles = [hvd.allreduce_async(torch.ones(2), name=str(i), op=hvd.Sum) for i in range(3)]
    check_works()
    if world.rank != 0:
        handles = [hvd.allreduce_async(torch.ones(2), name=str(i), op=hvd.Sum) for i in range(3)]
    check_works()
    for handle in handles:
        assert hvd.synchronize(handle).tolist() == [world.size] * 2


@with_sets_on_shm
def test_process_sets_are_counted_apart(world: World) -> None:
    """Rank 0 alone makes ops of its own set; others must not have to count them."""
    alone = hvd.add_process_set([0])
    if world.rank == 0:
        for _ in range(3):
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=alone).item() == 1.0
    for _ in range(3):
        check_works()


@with_peers_on_shm
def test_a_call_that_was_refused_does_not_count(world: World) -> None:
    """Rank 0 makes a mistake that only it can see; its next op is still the first."""
    if world.rank == 0:
        with pytest.raises(ValueError, match="root"):
            hvd.broadcast(torch.ones(2), world.size)
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(torch.ones(2, 2), [5] * world.size)
    mine = torch.full((2,), float(world.rank))
    assert hvd.broadcast(mine, 1).tolist() == [1.0] * 2
    assert len(hvd.alltoall(torch.ones(world.size))) == world.size


def reduce_seventeen() -> None:
    hvd.allreduce(torch.ones(17), op=hvd.Sum)


def reduce_nineteen() -> None:
    hvd.allreduce(torch.ones(19), op=hvd.Sum)


@with_peers
def test_drift_is_reported_with_both_call_sites(world: World) -> None:
    """Rank 0 has left one op out, so its second meets the first of the others."""
    sites = [
        f"test_hvd_unnamed.py:{function.__code__.co_firstlineno + 1}"
        for function in (reduce_seventeen, reduce_nineteen)
    ]
    with raises_mismatch("17", "19", *sites):
        if world.rank == 0:
            reduce_nineteen()
        else:
            reduce_seventeen()


@with_peers_on_shm
def test_drift_of_other_kinds_is_reported_too(world: World) -> None:
    odd = world.rank == world.size - 1
    with raises_mismatch("17", "19", "test_hvd_unnamed.py"):
        hvd.broadcast(torch.ones(17 if odd else 19), 0)
    with raises_mismatch("17", "19", "test_hvd_unnamed.py"):
        hvd.allgather(torch.ones(2, 17 if odd else 19))
    with raises_mismatch("float16", "float32", "test_hvd_unnamed.py"):
        hvd.reducescatter(torch.ones(4, dtype=torch.float16 if odd else torch.float32))


@on_ranks(2, transports=SHM, patience=1.5, stall_warning=0.2)
def test_one_op_too_many_is_reported_with_its_call_site(world: World, tmp_path: Path) -> None:
    """Alike in shape, the extra op of rank 0 can only be seen by waiting in vain."""
    for _ in range(2):
        check_works()
    if world.rank == 1:
        assert until((tmp_path / "reported").exists)  # late, not gone
        return
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    keeper = Keep()
    logging.getLogger("kadril").addHandler(keeper)
    try:
        with pytest.raises(Stalled) as caught:
            check_works()
    finally:
        logging.getLogger("kadril").removeHandler(keeper)
        (tmp_path / "reported").touch()
    assert until(lambda: any("hvd_stage.py" in record for record in records)), records
    assert "allreduce" in str(caught.value)
    assert caught.value.rank == 1
