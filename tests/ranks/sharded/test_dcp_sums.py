"""Checksums of torch's checkpoints: what was changed since it was saved is not loaded."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import TestCase

import pytest
import torch
from checkpoint_kit import contents, everything, flip_a_bit, make_trainer, train_more
from dcp_kit import alone, process_group
from gradient_kit import assert_same
from torch.distributed import checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from kadril.errors import CheckpointError
from kadril.sharded import dcp
from kadril.testing import ranks
from kadril.world import World

Damage = Callable[[Path], None]


def flip_in_a_shard(directory: Path) -> None:
    flip_a_bit(sorted(directory.glob("*.distcp"))[1])


def flip_in_the_metadata(directory: Path) -> None:
    flip_a_bit(directory / ".metadata")


def swap_shards(directory: Path) -> None:
    """Whole files under each other's names."""
    first, second = sorted(directory.glob("*.distcp"))
    first.rename(directory / "x")
    second.rename(first)
    (directory / "x").rename(second)


def remove_the_sums(directory: Path) -> None:
    for each in directory.glob("*.sha256"):
        each.unlink()


def forget_a_file(directory: Path) -> None:
    """Sums that do not have each file."""
    (path,) = directory.glob("*.sha256")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "_1_0.distcp" not in line))


@ranks(2)
def test_what_was_changed_is_not_loaded(world: World, tmp_path: Path) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    dcp.save(everything(trainer), path, world=world)
    train_more(trainer)
    before = contents(trainer)
    damages: list[tuple[Damage, str]] = [
        (flip_in_a_shard, r"_1_0\.distcp is damaged: its checksum .* part of '(model|optim)\."),
        (flip_in_the_metadata, r"\.metadata is damaged: its checksum"),
        (swap_shards, r"\.distcp (is damaged: its checksum|has \d+ bytes of)"),
        (remove_the_sums, r"has no checksums \(__\*\.sha256\).*FileSystemReader"),
        (forget_a_file, r"_1_0\.distcp is damaged"),
    ]
    for number, (damage, words) in enumerate(damages):
        copy = tmp_path / f"d{number}"
        if world.rank == 0:
            shutil.copytree(path, copy)
            damage(copy)
        world.transport.barrier()
        with pytest.raises(CheckpointError, match=words):
            dcp.load(everything(trainer), copy, world=world)
        assert_same(contents(trainer), before)
    dcp.load(everything(trainer), path, world=world)
    assert not torch.equal(contents(trainer)[0], before[0])


@ranks(2)
def test_damaged_metadata_is_not_unpickled(world: World, tmp_path: Path) -> None:
    """A pickle runs what it says while it is read; one that nobody wrote here is not read."""
    path, mark = tmp_path / "c", tmp_path / "ran"
    trainer = make_trainer(world)
    dcp.save(everything(trainer), path, world=world)
    if world.rank == 0:
        (path / ".metadata").write_bytes(pickle.dumps(Touches(mark)))
    world.transport.barrier()
    with pytest.raises(CheckpointError, match=r"\.metadata is damaged"):
        dcp.load(everything(trainer), path, world=world)
    assert not mark.exists()


@ranks(1)
def test_metadata_of_strangers_runs_no_code(world: World, tmp_path: Path) -> None:
    """Without checksums, as torch writes it, there is nothing that could be compared first."""
    path, mark = tmp_path / "c", tmp_path / "ran"
    trainer = make_trainer(world)
    dcp.save(everything(trainer), path, world=world)
    remove_the_sums(path)
    (path / ".metadata").write_bytes(pickle.dumps(Touches(mark)))
    with pytest.raises(CheckpointError, match=r"\.metadata was not read: it asks for pathlib"):
        dcp.load(everything(trainer), path, world=world)
    assert not mark.exists()


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self._mark,)


@ranks(2)
def test_plain_torch_reads_and_writes_with_checksums(world: World, tmp_path: Path) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    state = {"optim": trainer}
    with process_group(world, tmp_path):
        torch_dcp.save(state, storage_writer=dcp.AtomicWriter(path))
    with alone():
        torch_dcp.load(state, storage_reader=dcp.CheckedReader(path))
    world.transport.barrier()
    if world.rank == 0:
        flip_in_a_shard(path)
    world.transport.barrier()
    if world.rank == 1:  # the one that reads it
        with alone(), pytest.raises(CheckpointException) as e:
            torch_dcp.load(state, storage_reader=dcp.CheckedReader(path))
        assert "is damaged" in str(next(iter(e.value.failures.values()))[0])


@ranks(2)
def test_what_torch_wrote_without_checksums_is_read_and_said(world: World, tmp_path: Path) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    with process_group(world, tmp_path):
        torch_dcp.save(everything(trainer), checkpoint_id=path)
    with TestCase().assertLogs("kadril", "INFO") as logs:
        dcp.load(everything(trainer), path, world=world)
    assert "has no checksums: torch wrote it" in "".join(logs.output)


@ranks(2)
def test_other_tools_can_check_and_files_of_others_stay(world: World, tmp_path: Path) -> None:
    trainer = make_trainer(world)
    mine = tmp_path / "mine.sha256"
    if world.rank == 0:
        mine.write_text("something\n")
    world.transport.barrier()
    for _ in range(2):
        dcp.save(everything(trainer), tmp_path, world=world)
    assert mine.exists()
    (sums,) = tmp_path.glob("__*.sha256")
    subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=tmp_path, check=True)
    dcp.load(everything(trainer), tmp_path, world=world)


@ranks(2)
def test_values_of_strangers_run_no_code(world: World, tmp_path: Path) -> None:
    """Values that are no tensors were read as pickles, with whatever these called."""
    mark = tmp_path / f"touched.{world.rank}"
    plain = {"epoch": 3, "name": "x", "list": [1, 2.5, None, (True,)]}
    dcp.save({"plain": plain, "note": Touches(mark)}, tmp_path / "c", world=world)
    state: dict[str, object] = {"note": None}
    with pytest.raises(CheckpointError, match="'note' is more than numbers, texts"):
        dcp.load(state, tmp_path / "c", world=world)
    assert state == {"note": None}
    assert not list(tmp_path.glob("touched.*"))
    state = {"plain": dict.fromkeys(plain)}
    dcp.load(state, tmp_path / "c", world=world)
    assert state == {"plain": plain}
    world.transport.barrier()
    dcp.load({"note": None}, tmp_path / "c", planner=DefaultLoadPlanner(), world=world)
    assert list(tmp_path.glob("touched.*"))  # the checkpoint could do harm
