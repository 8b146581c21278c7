"""The files of checkpoints among others, damaged, or of two checkpoints at once."""

from __future__ import annotations

import gc
import secrets
from pathlib import Path
from unittest import TestCase

import pytest
import torch
from checkpoint_kit import contents, everything, full_disk, make_trainer, train_more
from gradient_kit import assert_same, backward
from sharded_kit import make_parameters, pull_of

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer, dcp
from kadril.testing import ranks
from kadril.world import World


@ranks(2)
def test_files_of_users_stay(world: World, tmp_path: Path) -> None:
    mine = tmp_path / "train-00001.shard"
    if world.rank == 0:
        mine.write_text("data")
    world.transport.barrier()
    trainer = make_trainer(world)
    for _ in range(2):
        trainer.save(tmp_path)
    world.transport.barrier()
    assert mine.read_text() == "data"
    assert len(list(tmp_path.glob("*-of-00002.shard"))) == 2


@ranks(2)
def test_an_index_that_was_changed_is_not_loaded(world: World, tmp_path: Path) -> None:
    """The index has the options, and what the user keeps; keys are as JSON has them."""
    trainer = make_trainer(world)
    trainer.set_learning_rate(0.5)
    trainer.save(tmp_path, {"epochs": {2: "a", 10: "b"}})
    assert trainer.load(tmp_path) == {"epochs": {"2": "a", "10": "b"}}
    train_more(trainer)
    before = contents(trainer)
    world.transport.barrier()
    if world.rank == 0:
        index = tmp_path / "index.json"
        index.write_text(index.read_text().replace('"lr": 0.5', '"lr": 9.5'))
    world.transport.barrier()
    with pytest.raises(CheckpointError, match=r"index\.json is damaged: its checksum"):
        trainer.load(tmp_path)
    assert trainer.learning_rate == 0.5
    assert_same(contents(trainer), before)


@ranks(2)
def test_ranks_that_read_different_checkpoints_are_told(world: World, tmp_path: Path) -> None:
    """Hosts may have directories of the same name on their disks, or another job saves."""
    trainer = make_trainer(world)
    for number in range(2):
        trainer.save(tmp_path / f"own{number}")
        dcp.save(everything(trainer), tmp_path / f"dcp{number}", world=world)
        train_more(trainer)
    before = contents(trainer)
    with pytest.raises(CheckpointError, match="ranks have read different checkpoints"):
        trainer.load(tmp_path / f"own{world.rank}")
    with pytest.raises(CheckpointError, match="ranks have read different checkpoints"):
        dcp.load(everything(trainer), tmp_path / f"dcp{world.rank}", world=world)
    assert_same(contents(trainer), before)


@ranks(2)
def test_what_cannot_be_tidied_up_is_told(world: World, tmp_path: Path) -> None:
    """The checkpoint is in its place by then: an error would say that it is not."""
    trainer = make_trainer(world)
    if world.rank == 0:
        (tmp_path / "x.distcp").mkdir()
        (tmp_path / f"{'0' * 16}-00000-of-00002.shard").mkdir()
    world.transport.barrier()
    for number in range(2):
        if world.rank == 0:
            with TestCase().assertLogs("kadril", "WARNING") as logs:
                dcp.save({**everything(trainer), "number": number}, tmp_path, world=world)
                trainer.save(tmp_path, {"number": number})
            assert "".join(logs.output).count("is saved, but could not be tidied up") == 2
        else:
            dcp.save({**everything(trainer), "number": number}, tmp_path, world=world)
            trainer.save(tmp_path, {"number": number})
        state = {"number": -1}
        dcp.load(state, tmp_path, world=world)
        assert state["number"] == number
        assert trainer.load(tmp_path) == {"number": number}


@ranks(2)
def test_sums_that_go_while_they_are_read(world: World, tmp_path: Path) -> None:
    """Another save removes the file between the look at the directory and the look into it."""
    trainer = make_trainer(world)
    dcp.save(everything(trainer), tmp_path, world=world)
    if world.rank == 0:
        (tmp_path / f"__{secrets.token_hex(8)}.sha256").symlink_to(tmp_path / "gone")
    saved = contents(trainer)
    train_more(trainer)
    dcp.load(everything(trainer), tmp_path, world=world)
    assert_same(contents(trainer), saved)


@ranks(2)
def test_a_save_beside_the_training_that_fails_is_told(world: World, tmp_path: Path) -> None:
    """Nobody has to ask for its result; and its copies do not live as long as its error."""
    trainer = make_trainer(world, size=1000)

    def copies() -> int:
        return sum(type(each) is torch.Tensor and each.numel() == 500 for each in gc.get_objects())

    before = copies()
    with full_disk(world.rank == 1), TestCase().assertLogs("kadril", "ERROR") as logs:
        saved = dcp.async_save(everything(trainer), tmp_path, world=world)
        assert isinstance(saved.exception(60.0), CheckpointError)
    assert "could not be written beside the training" in logs.output[0]
    assert copies() <= before


@ranks(2, transports=("shm", "c10d"))
def test_state_is_saved_and_loaded_while_gradients_are_on_their_way(
    world: World, tmp_path: Path
) -> None:
    """Rank 1 has made another pass: over a network its reduction waits for rank 0."""
    shapes = ((3,), (500,))
    parameters = make_parameters(shapes)
    trainer = POS_Trainer(parameters, "sgd", {"lr": 0.5, "momentum": 0.5}, world=world)
    backward(parameters, pull_of(world.rank, 0, 2, shapes))
    trainer.step()
    before = [each.detach().clone() for each in parameters]
    for number in range(1 + world.rank):
        backward(parameters, pull_of(world.rank, number, 2, shapes))
    state = trainer.consolidate()
    trainer.save(tmp_path / "own")
    dcp.save({"optim": trainer}, tmp_path / "dcp", world=world)
    assert (state is None) == (world.rank == 1)
    trainer.load(tmp_path / "own")
    dcp.load({"optim": trainer}, tmp_path / "dcp", world=world)
    assert_same(parameters, before)
    trainer.step()  # load() has dropped all gradients
    assert_same(parameters, before)
