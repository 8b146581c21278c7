"""Checkpoints: loaded at any number of ranks, whole or not at all, whoever is killed meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_kit import (
    contents,
    cut_short,
    die_at_sync,
    flip_a_bit,
    full_disk,
    kill_in_save,
    load_alone,
    make_trainer,
    remove,
)
from gradient_kit import assert_same, backward
from sharded_kit import (
    OPTIMIZERS,
    SmallerWorld,
    make_parameters,
    mean_of_step,
    one_process,
    plain,
    train,
    zeros,
)

from kadril.errors import CheckpointError
from kadril.sharded import POS_Trainer
from kadril.testing import ranks
from kadril.world import World

NAME, OPTIONS = OPTIMIZERS[3]


@ranks(3)
def test_training_goes_on_at_any_number_of_ranks(world: World, tmp_path: Path) -> None:
    """Two steps on two ranks, then one on others: as three steps in one process."""
    saver = SmallerWorld(world, 2)
    if saver.is_member:
        parameters = make_parameters()
        trainer = POS_Trainer(parameters, NAME, OPTIONS, world=saver)
        train(trainer, parameters, range(2))
        trainer.save(tmp_path / "step2", {"epoch": 5})
    world.transport.barrier()
    for size, rule in ((1, "flat"), (2, "greedy"), (3, "flat"), (3, "largest_first")):
        part = SmallerWorld(world, size)
        if part.is_member:
            parameters = zeros()
            trainer = POS_Trainer(parameters, NAME, OPTIONS, world=part, rule=rule)
            assert trainer.load(tmp_path / "step2") == {"epoch": 5}
            train(trainer, parameters, [2])
            means = [mean_of_step(step, 2) for step in range(2)] + [mean_of_step(2, size)]
            expected, _ = one_process(plain(NAME, OPTIONS), means)
            assert_same(parameters, expected)
        world.transport.barrier()


@ranks(2)
def test_dtypes_and_layouts_are_kept(world: World, tmp_path: Path) -> None:
    """A channels_last weight may be loaded into a contiguous one, and the reverse."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        for order, other in (
            (torch.channels_last, torch.contiguous_format),
            (torch.contiguous_format, torch.channels_last),
        ):
            values = torch.arange(2 * 33 * 4 * 5).reshape(2, 33, 4, 5).to(dtype) / 8
            weight = torch.nn.Parameter(values.to(memory_format=order))
            trainer = POS_Trainer({"w": weight}, "sgd", {"lr": 0.5, "momentum": 0.5}, world=world)
            backward(
                [weight.real if dtype.is_complex else weight],
                [torch.ones(()).to(weight.real.dtype)],
            )
            trainer.step()
            trainer.save(tmp_path / "c")
            again = torch.nn.Parameter(torch.zeros_like(values).to(memory_format=other))
            loaded = POS_Trainer({"w": again}, "sgd", {"lr": 0.5, "momentum": 0.5}, world=world)
            loaded.load(tmp_path / "c")
            assert torch.equal(again, weight)
            left, right = trainer.consolidate(), loaded.consolidate()
            if world.rank == 0:
                momentum = left["state"][0]["momentum_buffer"]
                assert torch.equal(right["state"][0]["momentum_buffer"], momentum)
                assert momentum.dtype == dtype


@ranks(2)
def test_what_is_missing_damaged_or_of_another_model_is_refused(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*index\.json"):
        trainer.load(path)
    trainer.save(path)
    before = contents(trainer)
    models = [
        (lambda: make_trainer(world, ("a", "c")), "no state for parameter 'c'"),
        (lambda: make_trainer(world, ("a",)), "a parameter 'b', which the trainer does not have"),
        (
            lambda: make_trainer(world, size=41),
            r"'a' has shape \(41,\), but the stored one \(40,\)",
        ),
    ]
    for make, words in models:
        other = make()
        kept = contents(other)
        with pytest.raises(CheckpointError, match=words):
            other.load(path)
        assert_same(contents(other), kept)
    shards = sorted(path.glob("*.shard"))
    assert len(shards) == 2
    world.transport.barrier()
    for number, damage in enumerate((flip_a_bit, cut_short, remove)):
        copy = tmp_path / f"d{number}"
        if world.rank == 0:
            shutil.copytree(path, copy)
            damage(copy / shards[1].name)
        world.transport.barrier()
        with pytest.raises(
            CheckpointError,
            match=r"00001-of-00002.shard \(.* 'a' to 'a'\) (is damaged|has|is missing)",
        ):
            trainer.load(copy)
        assert_same(contents(trainer), before)
    other = POS_Trainer({"a": torch.nn.Parameter(torch.ones(40))}, "sgd", world=world)
    with pytest.raises(CheckpointError, match="that of Adam, the trainer has SGD"):
        other.load(path)
    trainer.load(path)
    assert_same(contents(trainer), before)


@ranks(2)
def test_a_save_that_fails_leaves_the_last_one(world: World, tmp_path: Path) -> None:
    """A full disk on one rank is an error on both; the next save cleans up."""
    path = tmp_path / "c"
    trainer = make_trainer(world)
    trainer.save(path, {"number": 1})
    with full_disk(world.rank == 1), pytest.raises(CheckpointError) as caught:
        trainer.save(path, {"number": 2})
    failed = "" if world.rank == 1 else "save: rank 1 failed: "
    assert str(caught.value).startswith(f"{failed}No space left on device (ENOSPC): ")
    assert trainer.load(path) == {"number": 1}
    trainer.save(path, {"number": 3})
    assert trainer.load(path) == {"number": 3}
    world.transport.barrier()
    index = json.loads((path / "index.json").read_text())
    assert {each.name for each in path.iterdir()} == {
        "index.json",
        *(file["name"] for file in index["files"]),
    }


def save_and_die(world: World, path: Path, victim: int, moment: int) -> None:
    """Save once, then again; the victim is killed at the n-th call that makes something durable."""
    trainer = make_trainer(world)
    trainer.save(path, {"number": 1})
    if world.rank == victim:
        die_at_sync(moment)
    trainer.save(path, {"number": 2})


# Rank 1 syncs its shard; rank 0 its shard, the directory, the index, the directory.
@pytest.mark.parametrize(("victim", "moment"), [(1, 0), (0, 0), (0, 1), (0, 2), (0, 3)])
def test_who_is_killed_leaves_a_checkpoint(tmp_path: Path, victim: int, moment: int) -> None:
    survivor = kill_in_save(save_and_die, victim, tmp_path, victim, moment)
    assert survivor.error.type == "PeerLost"
    assert load_alone(load_number, tmp_path) == (2 if moment == 3 else 1)


def load_number(world: World, path: Path) -> int:
    trainer = make_trainer(world)
    extra = trainer.load(path)
    # Both were saved after one step.
    assert trainer.consolidate()["state"][0]["step"] == 1
    return int(extra["number"])


@ranks(1)
def test_loading_runs_no_code(world: World, tmp_path: Path) -> None:
    """Shards are JSON and bytes; a pickle in their place is refused as damaged."""
    trainer = make_trainer(world)
    trainer.save(tmp_path / "c")
    (shard,) = (tmp_path / "c").glob("*.shard")
    size = shard.stat().st_size
    torch.save({"a": 1}, shard)
    data = shard.read_bytes()[:size]
    shard.write_bytes(data + bytes(size - len(data)))
    with pytest.raises(CheckpointError, match="damaged: it has no header"):
        trainer.load(tmp_path / "c")
