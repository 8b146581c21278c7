"""torch.distributed.checkpoint: written on some ranks, read on others, by us and by torch alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_kit import (
    contents,
    cut_short,
    die_at_sync,
    everything,
    full_disk,
    kill_in_save,
    load_alone,
    make_trainer,
    remove,
    train_more,
)
from dcp_kit import NAME, OPTIONS, alone, process_group, save_on
from gradient_kit import assert_same, backward
from sharded_kit import (
    OPTIMIZERS,
    OTHER_OPTIMIZERS,
    SHAPES,
    SmallerWorld,
    make_parameters,
    mean_of_step,
    named,
    one_process,
    plain,
    train,
    trained_alone,
    zeros,
)
from torch import nn
from torch.distributed import checkpoint as torch_dcp
from torch.distributed.checkpoint import state_dict as torch_state
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from kadril.errors import CheckpointError, StateError
from kadril.sharded import POS_Trainer, ShardedOptimizer, dcp
from kadril.testing import ranks
from kadril.world import World


@ranks(3)
def test_training_goes_on_at_any_number_of_ranks(world: World, tmp_path: Path) -> None:
    """Two steps on two ranks, then one on others: as three steps in one process."""
    save_on(world, 2, tmp_path / "c")
    for size, rule in ((1, "flat"), (2, "greedy"), (3, "flat"), (3, "largest_first")):
        part = SmallerWorld(world, size)
        if part.is_member:
            parameters = zeros()
            trainer = POS_Trainer(named(parameters), NAME, OPTIONS, world=part, rule=rule)
            state = {"model": named(parameters), "optim": trainer, "epoch": 0}
            dcp.load(state, tmp_path / "c", world=part)
            assert state["epoch"] == 5
            assert_same(parameters, trained_alone(NAME, OPTIONS, 2, 2)[0])
            train(trainer, parameters, [2])
            means = [mean_of_step(0, 2), mean_of_step(1, 2), mean_of_step(2, size)]
            assert_same(parameters, one_process(plain(NAME, OPTIONS), means)[0])
        world.transport.barrier()


@ranks(2)
def test_torch_alone_reads_it_in_one_process(world: World, tmp_path: Path) -> None:
    save_on(world, 2, tmp_path / "c")
    if world.rank:
        return
    expected, optimizer = trained_alone(NAME, OPTIONS, 2, 2)
    # As one file.
    dcp_to_torch_save(tmp_path / "c", tmp_path / "c.pt")
    loaded = torch.load(tmp_path / "c.pt")
    assert_same([loaded["model"][f"p{i}"] for i in range(len(SHAPES))], expected)
    assert loaded["optim"]["param_groups"][0]["params"] == [f"p{i}" for i in range(len(SHAPES))]
    # Into the state of a plain optimizer of a module.
    module = nn.ParameterDict(named(zeros()))
    loaded_into = plain(NAME, OPTIONS)(list(module.values()))
    state = {
        "model": module.state_dict(),
        "optim": torch_state.get_optimizer_state_dict(module, loaded_into),
    }
    with alone():
        torch_dcp.load(state, checkpoint_id=tmp_path / "c")
    torch_state.set_optimizer_state_dict(module, loaded_into, state["optim"])
    module.load_state_dict(state["model"])
    assert_same(module.values(), expected)
    for place, each in enumerate(module.values()):
        for key, value in optimizer.state_dict()["state"][place].items():
            assert torch.equal(loaded_into.state[each][key], value), (place, key)


@ranks(2)
def test_plain_torch_saves_and_loads_with_a_process_group(world: World, tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` itself, into a trainer that has not stepped yet."""
    for name, options in OPTIMIZERS:
        path = tmp_path / f"{name}{len(options)}"
        parameters = make_parameters()
        trainer = POS_Trainer(named(parameters), name, options, world=world)
        train(trainer, parameters, range(2))
        if world.rank == 0:
            path.mkdir()
        world.transport.barrier()
        with process_group(world, path):
            for _ in range(2):  # the second one replaces the first
                torch_dcp.save({"optim": trainer}, storage_writer=dcp.AtomicWriter(path))
        assert len(list(path.glob("*.distcp"))) == 2
        again = [nn.Parameter(each.detach().clone()) for each in parameters]
        fresh = POS_Trainer(named(again), name, options, world=world, rule="greedy")
        with alone():  # reading needs no group
            torch_dcp.load({"optim": fresh}, checkpoint_id=path)
        train(fresh, again, [2])
        expected, _ = trained_alone(name, options, 3, 2)
        assert_same(again, expected)


@ranks(2)
def test_without_a_process_group_torch_is_kept_from_overwriting(
    world: World, tmp_path: Path
) -> None:
    parameters = make_parameters(((50,), (4, 5)))
    trainer = POS_Trainer(named(parameters), "adam", world=world)
    with (
        alone(),
        pytest.raises(CheckpointException) as e,
    ):
        torch_dcp.save({"optim": trainer}, checkpoint_id=tmp_path / "c")
    ((error, _),) = e.value.failures.values()
    assert isinstance(error, StateError)
    assert "kadril.sharded.dcp.save, or init_process_group()" in str(error)
    assert "optim.state.p" in str(error)
    assert not list(tmp_path.glob("c/*"))


@ranks(2)
def test_what_fsdp_wrote_is_read(world: World, tmp_path: Path) -> None:
    """The same model and keys, other cuts: FSDP cuts dim 0 of each parameter."""
    from torch.distributed.fsdp import fully_shard

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    x = torch.arange(20.0).reshape(4, 5) / 8
    with process_group(world, tmp_path):
        model = fully_shard(make(), mesh=dist.init_device_mesh("cpu", (world.size,)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(x).square().sum().backward()
        optimizer.step()
        states = torch_state.get_state_dict(model, optimizer)
        torch_dcp.save({"model": states[0], "optim": states[1]}, checkpoint_id=tmp_path / "c")
        expected = [each.full_tensor().detach() for each in model.parameters()]
        moments = [optimizer.state[each]["exp_avg"].full_tensor() for each in model.parameters()]
    ours = make()
    trainer = POS_Trainer(ours, "adam", {"lr": 0.5}, world=world)
    dcp.load({"model": ours, "optim": trainer}, tmp_path / "c", world=world)
    assert_same(ours.parameters(), expected)
    assert trainer.learning_rate == 0.1
    state = trainer.consolidate()
    if world.rank == 0:
        assert_same([state["state"][place]["exp_avg"] for place in range(4)], moments)
        assert all(state["state"][place]["step"] == 1 for place in range(4))


@ranks(2, transports=("shm", "c10d"))
def test_modules_with_buffers_and_the_front_of_torchs_class(world: World, tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, ShardedOptimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
        model.to(memory_format=torch.channels_last)
        optimizer = ShardedOptimizer(
            model, torch.optim.SGD, reduce_gradients=True, world=world, lr=0.5, momentum=0.5
        )
        return model, optimizer

    def step(model: nn.Module, optimizer: ShardedOptimizer) -> None:
        optimizer.zero_grad()
        model(torch.arange(64.0).reshape(2, 2, 4, 4) / 64).square().sum().backward()
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    for key in ("itself", "sharded"):
        what = optimizer if key == "itself" else optimizer.sharded
        dcp.save({"model": model, "optim": what}, tmp_path / key, world=world)
    step(model, optimizer)
    for key in ("itself", "sharded"):
        again, restored = make()
        with torch.no_grad():
            if world.rank == 0:
                for each in again.parameters():
                    each.zero_()
        what = restored if key == "itself" else restored.sharded
        dcp.load({"model": again, "optim": what}, tmp_path / key, world=world)
        assert restored.param_groups[0]["lr"] == 0.25
        step(again, restored)
        assert_same(again.state_dict().values(), model.state_dict().values())


@ranks(2)
def test_what_is_missing_or_of_another_model_changes_nothing(world: World, tmp_path: Path) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*\.metadata"):
        dcp.load(everything(trainer), path, world=world)
    dcp.save(everything(trainer), path, world=world)
    with pytest.raises(CheckpointError, match=r"torch.distributed.checkpoint, see .*dcp.load"):
        trainer.load(path)
    models = [
        (("a", "c"), 40, ["optim"], "a parameter 'b', which the trainer does not have"),
        (("a", "b", "c"), 40, ["optim"], "no state for parameter 'c'"),
        (("a", "b"), 41, ["optim"], r"of parameter '[ab]' has shape \(40,\), but .*\(41,\)"),
        (("a", "b"), 41, ["model"], r"Size mismatch .*40.*41.* for model\.[ab]"),
        (("a", "b", "c"), 40, ["model", "optim"], r"Missing key .*model\.c"),
    ]
    for names, size, wanted, words in models:
        other = make_trainer(world, names, size)
        before = contents(other)
        with pytest.raises(CheckpointError, match=words):
            dcp.load({key: everything(other)[key] for key in wanted}, path, world=world)
        assert_same(contents(other), before)
    nameless = POS_Trainer([nn.Parameter(torch.ones(40))], "adam", world=world)
    with pytest.raises(CheckpointError, match=r"called 'parameter\.0', .*named_parameters\(\)"):
        dcp.load({"optim": nameless}, path, world=world)
    train_more(trainer)
    before = contents(trainer)
    shards = sorted(path.glob("*.distcp"))
    assert len(shards) == 2
    for number, damage in enumerate((remove, cut_short)):
        copy = tmp_path / f"d{number}"
        if world.rank == 0:
            shutil.copytree(path, copy)
            damage(copy / shards[1].name)
        world.transport.barrier()
        with pytest.raises(CheckpointError, match=r"_0\.distcp (is missing|has .* bytes of)") as e:
            dcp.load(everything(trainer), copy, world=world)
        assert e.value.parameter.startswith("optim.state.") or "failed: " in str(e.value)
        assert_same(contents(trainer), before)
    # torch itself finds out while it reads; the state is as it was all the same.
    copy = tmp_path / f"t{world.rank}"
    shutil.copytree(path, copy)
    for each in copy.glob("*.distcp"):
        cut_short(each)
    with alone(), pytest.raises(CheckpointException):
        torch_dcp.load({"optim": trainer}, checkpoint_id=copy)
    assert_same(contents(trainer), before)
    dcp.load(everything(trainer), path, world=world)
    assert not torch.equal(contents(trainer)[0], before[0])


def save_and_die(world: World, path: Path, victim: int, moment: int) -> None:
    """Save once, then again; the victim is killed at the n-th call that makes something durable."""
    trainer = make_trainer(world)
    dcp.save({**everything(trainer), "number": 1}, path, world=world)
    if world.rank == victim:
        die_at_sync(moment)
    dcp.save({**everything(trainer), "number": 2}, path, world=world)


# Rank 1 syncs its shard; rank 0 its shard, the metadata, the checksums, the directory, and, when
# the metadata is in its place, the directory again.
@pytest.mark.parametrize(
    ("victim", "moment"),
    [(1, 0), (0, 3), *(pytest.param(0, moment, marks=pytest.mark.long) for moment in (0, 1, 2, 4))],
)
def test_who_is_killed_leaves_a_checkpoint(tmp_path: Path, victim: int, moment: int) -> None:
    survivor = kill_in_save(save_and_die, victim, tmp_path, victim, moment)
    assert survivor.error.type == "PeerLost"
    assert load_alone(load_and_save, tmp_path) == (2 if moment == 4 else 1)


def load_and_save(world: World, path: Path) -> int:
    trainer = make_trainer(world)
    state = {**everything(trainer), "number": 0}
    dcp.load(state, path, world=world)
    assert trainer.consolidate()["state"][0]["step"] == 1
    # The next one cleans up.
    dcp.save(state, path, world=world)
    suffixes = sorted(each.suffix for each in path.iterdir())
    assert suffixes == ["", ".distcp", ".sha256"], list(path.iterdir())
    return int(state["number"])


@ranks(2)
def test_a_rank_that_cannot_write_is_an_error_on_all(world: World, tmp_path: Path) -> None:
    path = tmp_path / "c"
    trainer = make_trainer(world)
    dcp.save({**everything(trainer), "number": 1}, path, world=world)
    with full_disk(world.rank == 1), pytest.raises(CheckpointError, match="No space left"):
        dcp.save({**everything(trainer), "number": 2}, path, world=world)
    state = {"number": 0}
    dcp.load(state, path, world=world)
    assert state["number"] == 1
    with pytest.raises(ValueError, match="give checkpoint_id"):
        dcp.save({}, world=world)
    with pytest.raises(ValueError, match="give checkpoint_id"):
        dcp.load({}, world=world)


@ranks(2)
def test_a_new_trainer_has_the_state_that_it_begins_with(world: World) -> None:
    """Loaded or not, what `state_dict()` gives before the first step changes nothing."""
    shapes = ((3,), (2, 5), (1021,))
    dampened = ("SGD", {"lr": 0.1, "momentum": 0.5, "dampening": 0.5})
    for name, options in [*OPTIMIZERS, *OTHER_OPTIMIZERS, dampened]:
        results = []
        for loads in (False, True):
            parameters = make_parameters(shapes)
            trainer = POS_Trainer(named(parameters), name, options, world=world)
            if loads:
                trainer.load_state_dict(trainer.state_dict())
            train(trainer, parameters, range(2), shapes=shapes)
            results.append(parameters)
        assert_same(*results)


@ranks(2)
def test_classes_that_torch_does_not_have(world: World, tmp_path: Path) -> None:
    """The first state of such a class is not known, so there is none; the checkpoint says so."""

    class Own(torch.optim.Adam):
        pass

    def make() -> tuple[list[nn.Parameter], POS_Trainer]:
        parameters = make_parameters(((3,), (4, 5)))
        return parameters, POS_Trainer(named(parameters), Own, {"lr": 0.1}, world=world)

    parameters, trainer = make()
    assert trainer.state_dict()["state"] == {}
    backward(parameters[:1], [torch.ones(3)])  # the other one has no state
    trainer.step()
    dcp.save({"optim": trainer}, tmp_path / "c", world=world)
    _, fresh = make()
    dcp.load({"optim": fresh}, tmp_path / "c", world=world)
    assert {*trainer.state_dict()["state"]} == {*fresh.state_dict()["state"]}
    for key, value in trainer.state_dict()["state"].get("p0", {}).items():
        other = fresh.state_dict()["state"]["p0"][key]
        assert torch.equal(getattr(other, "local", other), getattr(value, "local", value))
