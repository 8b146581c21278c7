"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoint_kit import (
    die_at_sync,
    everything,
    full_disk,
    kill_in_save,
    load_alone,
    make_trainer,
    train_more,
)
from dcp_kit import NAME, OPTIONS, alone, process_group
from gradient_kit import assert_same
from sharded_kit import make_parameters, named, train, trained_alone, zeros
from torch import nn
from torch.distributed import checkpoint as torch_dcp

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer, dcp
from kadril.testing import Ranks, ranks
from kadril.world import World


@contextmanager
def held_disk() -> Iterator[threading.Event]:
    """Nothing becomes durable before the event is set."""
    event = threading.Event()
    sync = os.fsync

    def wait_and_sync(descriptor: int) -> None:
        assert event.wait(60.0)
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", wait_and_sync)
        try:
            yield event
        finally:
            event.set()


@ranks(2, transports=("shm", "c10d", "mpi:openmpi"))
def test_what_is_saved_is_what_there_was(world: World, tmp_path: Path) -> None:
    """Two steps, a save that gets stuck, two more steps meanwhile: the first two are in it."""
    parameters = make_parameters()
    trainer = POS_Trainer(named(parameters), NAME, OPTIONS, world=world)
    train(trainer, parameters, range(2))
    epoch = {"number": 2}
    with held_disk() as disk:
        saved = dcp.async_save(
            {"model": named(parameters), "optim": trainer, "epoch": epoch}, tmp_path, world=world
        )
        epoch["number"] = 3
        train(trainer, parameters, range(2, 4))
        assert not saved.done()
        disk.set()
        assert saved.result(60.0) is None
    assert_same(parameters, trained_alone(NAME, OPTIONS, 4, 2)[0])
    again = zeros()
    fresh = POS_Trainer(named(again), NAME, OPTIONS, world=world)
    state = {"model": named(again), "optim": fresh, "epoch": {"number": 0}}
    dcp.load(state, tmp_path, world=world)
    assert state["epoch"] == {"number": 2}
    assert_same(again, trained_alone(NAME, OPTIONS, 2, 2)[0])
    train(fresh, again, range(2, 4))
    assert_same(again, parameters)


@ranks(2)
def test_only_what_falls_to_a_rank_is_copied(world: World, tmp_path: Path) -> None:
    """Parameters that all ranks have are copied on one; state, where it is."""
    size = 1 << 20
    parameters = {"a": nn.Parameter(torch.ones(size))}
    trainer = POS_Trainer(parameters, "adam", world=world)
    parameters["a"].grad = torch.ones(size)
    trainer.step()
    copied = []
    original = torch.Tensor.to

    def note(self: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        if options.get("copy"):
            copied.append(self.nbytes)
        return original(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", note)
        dcp.async_save({"model": parameters, "optim": trainer}, tmp_path, world=world).result(60.0)
    # Half of each of Adam's two tensors, the parameter on one rank, a step here and there.
    state = 2 * 4 * size // 2
    total = torch.tensor([0, 0])
    total[world.rank] = sum(copied)
    world.transport.allreduce(total.numpy(), op="sum", name="total")
    assert state <= min(total)
    assert sum(total) < 2 * state + 4 * size + 64, total


@ranks(2)
def test_the_next_call_waits_for_the_one_before(world: World, tmp_path: Path) -> None:
    """Two saves at once to one directory would remove each other's files."""
    trainer = make_trainer(world)
    futures = []
    for number in range(4):
        state = {**everything(trainer), "number": number}
        futures.append(dcp.async_save(state, tmp_path, world=world))
        assert all(each.done() for each in futures[:-1])
        train_more(trainer)
    dcp.save({**everything(trainer), "number": 4}, tmp_path, world=world)
    assert futures[-1].done()
    dcp.async_save({**everything(trainer), "number": 5}, tmp_path, world=world)
    state = {"number": 0}
    dcp.load(state, tmp_path, world=world)
    assert state["number"] == 5
    assert [each.result() for each in futures] == [None] * 4


def save_and_leave(world: World, path: Path) -> None:
    """Ends at once: a world waits for what is being saved before it closes."""
    dcp.async_save({**everything(make_trainer(world)), "number": 1}, path, world=world)
    world.close()


def test_a_world_that_ends_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    with Ranks(2) as leaving:
        outcomes = leaving.start(save_and_leave, tmp_path).wait(60.0)
    assert [each.error for each in outcomes] == [None, None]
    assert load_alone(load_number, tmp_path) == 1


def load_number(world: World, path: Path) -> int:
    state = {**everything(make_trainer(world)), "number": 0}
    dcp.load(state, path, world=world)
    return int(state["number"])


@ranks(2)
def test_what_goes_wrong_meanwhile_is_raised_by_the_result(world: World, tmp_path: Path) -> None:
    trainer = make_trainer(world)
    dcp.save({**everything(trainer), "number": 1}, tmp_path, world=world)
    with full_disk(world.rank == 1):
        saved = dcp.async_save({**everything(trainer), "number": 2}, tmp_path, world=world)
        with pytest.raises(CheckpointError, match="No space left"):
            saved.result(60.0)
    extra = threading.Lock() if world.rank else 0
    with pytest.raises(CheckpointError, match=r"cannot pickle|rank 1 failed"):
        dcp.async_save({**everything(trainer), "extra": extra}, tmp_path, world=world)
    state = {"number": 0}
    dcp.load(state, tmp_path, world=world)
    assert state["number"] == 1
    with pytest.raises(ValueError, match="give checkpoint_id"):
        dcp.async_save({}, world=world)


def save_and_die(world: World, path: Path) -> str:
    """Rank 1 is killed while its shard is written; rank 0 learns it from the future."""
    trainer = make_trainer(world)
    dcp.save({**everything(trainer), "number": 1}, path, world=world)
    if world.rank == 1:
        die_at_sync(0)
    saved = dcp.async_save({**everything(trainer), "number": 2}, path, world=world)
    return type(saved.exception(60.0)).__name__


def test_who_is_killed_meanwhile_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    survivor = kill_in_save(save_and_die, 1, tmp_path)
    assert survivor.value == "PeerLost", survivor
    assert load_alone(load_number, tmp_path) == 1


@ranks(2)
@pytest.mark.parametrize("is_atomic", [True, False])
def test_async_save_of_torch_itself(world: World, tmp_path: Path, is_atomic: bool) -> None:
    """Both of torch's stagers copy parts: that of its writer, and the one it takes by itself."""
    path = tmp_path / "c"
    shapes = ((50,), (4, 5), ())
    parameters = make_parameters(shapes)
    trainer = POS_Trainer(named(parameters), NAME, OPTIONS, world=world)
    train(trainer, parameters, range(2), shapes=shapes)
    expected = [each.detach().clone() for each in parameters]
    where = {"storage_writer": dcp.AtomicWriter(path)} if is_atomic else {"checkpoint_id": path}
    with process_group(world, tmp_path):
        saved = torch_dcp.async_save({"model": named(parameters), "optim": trainer}, **where)
        train(trainer, parameters, [2], shapes=shapes)
        saved.result()
    world.transport.barrier()
    again = zeros(shapes)
    fresh = POS_Trainer(named(again), NAME, OPTIONS, world=world)
    state = {"model": named(again), "optim": fresh}
    with alone():
        dcp.load(state, path, world=world)
    assert_same(again, expected)
    train(fresh, again, [2], shapes=shapes)
    assert_same(again, parameters)
