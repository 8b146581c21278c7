"""Ranks of `kadril experiment`: runs, pictures, checkpoints for any world, recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_seed_points import DIGITS_CNN, DIGITS_GB

import kadril.experiment as ke
from kadril.experiment.files.checkpoint_file import read_checkpoint
from kadril.experiment.files.registry import CLASSES
from kadril.experiment.program import parse, run_experiment
from kadril.experiment.progress import ProgressBar
from kadril.launch.verbs.new_recipe import write_recipe
from kadril.testing import ranks
from kadril.world import World


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that tests of several sizes of worlds share."""
    made = tmp_path_factory.mktemp("experiments")
    (made / "cnn.yaml").write_text(DIGITS_CNN)
    (made / "gb.yaml").write_text(DIGITS_GB)
    return made


@ranks(2)
def test_results(world: World, tmp_path: Path, folder: Path) -> None:
    words = [str(folder / "gb.yaml"), "--epochs", "1", "--results", str(tmp_path / "r.json")]
    result = run_experiment(parse(words))
    world.transport.barrier()
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["ranks"] == 2
    assert [each["kind"] for each in told["history"]] == ["pretrain", "pretrain", "train"]
    assert told["misclassified"] == result.misclassified
    assert set(result.misclassified[0]) == {"train", "test"}


@ranks(1, 2)
def test_resumed_with_another_number_of_ranks(world: World, tmp_path: Path, folder: Path) -> None:
    """After each epoch the whole state is kept, momentum included."""
    for file in ("cnn.yaml", "gb.yaml"):
        text = (folder / file).read_text()
        text = text.replace(
            "batch_size: 50,", "batch_size: 50, momentum: {type: constant, coef: 0.5},"
        )
        path = tmp_path / file
        path.write_text(text)
        whole = run_experiment(parse([str(path), "--no-progress"]))
        # The checkpoint of a run in one process, with fewer epochs.
        kept = tmp_path / f"{file}.pt"
        experiment = ke.load_file(path, {"*": {"num_epochs": 1}}, plain=True)
        experiment.checkpoint = str(tmp_path / f"{world.rank}{file}.pt")
        experiment.run()
        words = [str(path), "--checkpoint", experiment.checkpoint, "--resume", "--no-progress"]
        rest = run_experiment(parse(words))
        assert len(rest.history) == len(whole.history)
        for one, other in zip(rest.history, whole.history, strict=True):
            assert one.cost == pytest.approx(other.cost, rel=1e-4)
        assert not kept.exists()
        if world.rank == 0:
            state = read_checkpoint(experiment.checkpoint)
            assert state["stages_done"] == len(whole.history)
    wrong = [str(folder / "cnn.yaml"), "--checkpoint", experiment.checkpoint, "--resume"]
    with pytest.raises(ke.ExperimentError, match="a model with layers"):
        run_experiment(parse(wrong))
    with pytest.raises(ke.ExperimentError, match="there is no checkpoint"):
        run_experiment(parse([str(path), "--checkpoint", str(tmp_path / "no"), "--resume"]))
    with pytest.raises(ke.ExperimentError, match="--resume needs --checkpoint"):
        run_experiment(parse([str(path), "--resume"]))


def test_a_model_that_was_kept_is_not_trained_again(tmp_path: Path) -> None:
    text = DIGITS_CNN.replace(
        "num_epochs: 3", f"num_epochs: 1, serialized_path: {tmp_path}/model.pt"
    )
    first = ke.load_text(text, plain=True)
    first.run()
    second = ke.load_text(text, plain=True)
    second.model.on_batch = lambda *_: pytest.fail("it is trained already")
    assert second.run().misclassified == first.run().misclassified
    (tmp_path / "model.pt").write_bytes(b"nothing")
    with pytest.raises(ke.ExperimentError, match="is no checkpoint of an experiment"):
        ke.load_text(text, plain=True).run()
    assert (tmp_path / "model.pt").read_bytes() == b"nothing"


@pytest.mark.parametrize("kind", ["dataset", "layer", "model"])
@ranks(2)
def test_recipes_run_as_they_are_written(world: World, kind: str, tmp_path: Path) -> None:
    """`kadril experiment new KIND NAME`; on ranks, and as the plain twin in one process."""
    directory = tmp_path / str(world.rank)
    assert write_recipe([kind, "brightSpots", "--directory", str(directory)]) == 0
    python, yaml = directory / "bright_spots.py", directory / "bright_spots.yaml"
    before = python.read_text()
    assert write_recipe([kind, "brightSpots", "--directory", str(directory)]) == 2
    assert python.read_text() == before
    assert write_recipe([kind, "no/name", "--directory", str(directory)]) == 2
    known = dict(CLASSES)
    try:
        words = [str(yaml), "--with", str(python), "--no-progress"]
        result = run_experiment(parse(words))
        plain = ke.load_file(yaml, plain=True)
        expected = plain.run()
        for one, other in zip(result.history, expected.history, strict=True):
            assert one.cost == pytest.approx(other.cost, rel=1e-4)
        assert result.history[-1].cost < result.history[0].cost
        chance = 50 if kind == "dataset" else 90
        assert result.misclassified[0]["test"] < 0.7 * chance
    finally:
        CLASSES.clear()
        CLASSES.update(known)


EXAMPLES = Path(__file__).parents[3] / "examples"
FEW = ["--epochs", "1", "--pretrain-epochs", "1", "--no-progress", "--sample-pct"]


def write_photographs(folder: Path) -> None:
    """CIFAR-10's binary batches, with 60 images each that are no photographs."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (60, 3073), dtype=torch.uint8, generator=generator)
    images[:, 0] = torch.arange(60) % 10
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (folder / name).write_bytes(bytes(images.flatten().tolist()))


@ranks(2)
def test_examples_on_two_ranks(world: World, tmp_path: Path) -> None:
    """Examples run with few images; their files are those that users change."""
    if world.rank == 0:
        write_photographs(tmp_path)
    world.transport.barrier()
    for file in ("cifar10_distarray_cnn", "cifar10_distarray_gb"):
        words = [str(EXAMPLES / f"{file}.yaml"), *FEW, "100", "--data", str(tmp_path)]
        result = run_experiment(parse(words))
        assert set(result.misclassified[0]) == {"train", "test"}
    result = run_experiment(parse([str(EXAMPLES / "mnist_distarray_gb.yaml"), *FEW, "2.5"]))
    assert [record.layer for record in result.history] == [0, 3, 6, None]


@ranks(4)
def test_examples_on_four_ranks(world: World) -> None:
    """Two groups of two ranks each do what four ranks on one grid do."""
    costs = []
    for file in ("mnist_distarray_cnn", "mnist_towers_in_groups"):
        result = run_experiment(parse([str(EXAMPLES / f"{file}.yaml"), *FEW, "5"]))
        costs.append([record.cost for record in result.history])
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)


@ranks(2)
def test_what_is_refused(world: World, tmp_path: Path, folder: Path) -> None:
    plain = DIGITS_CNN.replace("Dist", "").replace("convnet_dist", "convnet")
    plain = plain.replace("dist_flag: &df True,", "").replace("dist_flag: *df, ", "")
    (tmp_path / f"{world.rank}.yaml").write_text(plain)
    with pytest.raises(ke.ExperimentError, match=r"is not distributed, and there are 2 ranks"):
        run_experiment(parse([str(tmp_path / f"{world.rank}.yaml")]))
    (tmp_path / f"n{world.rank}.yaml").write_text("!obj:kadril.experiment.Backend {}")
    with pytest.raises(ke.ExperimentError, match="describes a Backend, and no experiment"):
        run_experiment(parse([str(tmp_path / f"n{world.rank}.yaml")]))
    file = str(folder / "cnn.yaml")
    with pytest.raises(ke.ExperimentError, match="--grid takes rows x columns"):
        run_experiment(parse([file, "--grid", "4"]))
    with pytest.raises(ke.ExperimentError, match=r"--with no\.py"):
        run_experiment(parse([file, "--with", "no.py"]))
    # Both were found after the training, whose result was lost.
    with pytest.raises(ke.ExperimentError, match=r"filters of a GB model, and .* a ConvnetDist"):
        run_experiment(parse([file, "--visualize", "filters.png"]))
    for option in ("--checkpoint", "--plot", "--results"):
        with pytest.raises(ke.ExperimentError, match=f"{option} .*there is no folder .*gone"):
            run_experiment(parse([file, option, str(tmp_path / "gone" / "file")]))
        with pytest.raises(ke.ExperimentError, match=f"{option} .* is a folder"):
            run_experiment(parse([file, option, str(tmp_path)]))
    with pytest.raises(ke.ExperimentError, match=r"its suffix is none of .*png"):
        run_experiment(parse([file, "--plot", str(tmp_path / "curves.yaml")]))
    (tmp_path / f"s{world.rank}.py").write_text("\ndef (")
    with pytest.raises(ke.ExperimentError, match=r"--with .*\.py: line 2: invalid syntax"):
        run_experiment(parse([file, "--with", str(tmp_path / f"s{world.rank}.py")]))
    with pytest.raises(ke.GridError, match=r"a grid of 1 x 5 for 2 ranks.*that do: 2 x 1, 1 x 2"):
        run_experiment(parse([file, "--grid", "1x5"]))
    hot = ke.load_text(DIGITS_CNN.replace("learning_rate: 0.05", "learning_rate: 1.0e+30"))
    with pytest.raises(ke.ExperimentError, match=r"the cost is (nan|inf)"):
        hot.run()


@ranks(1, 2)
def test_data_and_layers_that_do_not_match(world: World) -> None:
    """Such data used to end in errors of torch, from the middle of the first step."""
    for old, new, words in (
        ("nofm: 6,", "nofm: 5,", "a makes 5 maps of .6, 6., and b takes 6"),
        ("nin: 96", "nin: 95", "c takes 95 inputs, and gets 96"),
        ("nin: 20", "nin: 21", "d takes 21 inputs, and gets 20"),
        ("nout: 10", "nout: 9", "Digits has 10 classes, and d makes 9 outputs"),
        ("Digits {", "MNIST {", "the dataset makes 1 maps of .28, 28., and a takes 1 of .8, 8."),
        ("level: 40", "level: LOUD", "logging: .*LOUD"),
        ("level: 40", "format: '%(nothing)s'", "logging: .*nothing"),
        ("level: 40", "filename: /dev/null/no", "logging: .*/dev/null/no|rank 0 .*logging"),
        ("sample_pct", "serialized_path: 'a{rank}{b}', sample_pct", "only .rank. and .size. stand"),
    ):
        assert old in DIGITS_CNN
        experiment = ke.load_text(DIGITS_CNN.replace(old, new), plain=world.size == 1)
        with pytest.raises(ke.ExperimentError, match=words):
            experiment.run()


@ranks(2)
def test_a_state_that_cannot_be_kept(world: World, tmp_path: Path) -> None:
    """The rank that writes raised, and the other went on to the next epoch and waited for it."""
    experiment = ke.load_text(DIGITS_CNN)
    experiment.checkpoint = str(tmp_path)  # a folder
    with pytest.raises(ke.ExperimentError, match="cannot be written"):
        experiment.run()


def test_the_bar(tmp_path: Path) -> None:
    from kadril.experiment.models import Stage

    with (tmp_path / "bar").open("w") as stream:
        bar = ProgressBar(stream)
        for done in range(1, 9):
            bar(Stage("pretrain", 2, 3), done, 8)
    lines = (tmp_path / "bar").read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("pretrain layer 3, epoch 2 [######..................] 2/8 batches")
    assert lines[-1].count("#") == 24
