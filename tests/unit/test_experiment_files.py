"""Experiments' files: what they may say, and what is said of mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kadril.experiment as ke
from kadril.experiment.files.checked_call import keys_of
from kadril.experiment.files.registry import CLASSES, plain_twin, registered

LAYER = "!obj:layer.ConvLayer {name: a, nifm: 1, nofm: 2, ifmshape: [8, 8], fshape: [3, 3]"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("text", "kind", "line", "words"),
    [
        ("!obj:os.system {command: ls}", ke.UnknownClassError, 1, "Only registered classes"),
        ("!obj:kadril.experiment.ConvLayr {}", ke.UnknownClassError, 1, "did you mean"),
        ("!obj:subprocess.Popen {args: ls}", ke.UnknownClassError, 1, "imports nothing"),
        (LAYER + ",\n  nfom: 3}", ke.UnknownKeyError, 2, "did you mean 'nofm'"),
        (LAYER + ",\n  stride: two}", ke.BadValueError, 2, "Expected `int`, got `str`"),
        ("!obj:layer.ConvLayer {\n  name: a}", ke.BadValueError, 1, "needs the key 'nifm'"),
        (LAYER + ",\n weight_init: {typ: uniform}}", ke.UnknownKeyError, 2, "takes no key 'typ'"),
        (LAYER + ",\n weight_init: {type: even}}", ke.BadValueError, 2, "Invalid enum value"),
        (LAYER + ",\n\n backend: 3}", ke.BadValueError, 3, "Expected `Backend`"),
        (LAYER + ", stride: 1,\n stride: 2}", ke.BadValueError, 2, "'stride' is there twice"),
        (LAYER.replace("[3, 3]", "[9, 9]") + "}", ke.BadValueError, 1, "fields of 9 x 9"),
        ("a: [1,\n  2", ke.ExperimentFileError, 2, "this is no YAML"),
        ("!!python/object/apply:os.system [ls]", ke.ExperimentFileError, 1, "this is no YAML"),
        ("!obj:layer.ConvLayer 3", ke.BadValueError, 1, "is followed by keys"),
        ("!obj:kadril.experiment.MLP {layers: [1]}", ke.BadValueError, 1, "Expected `BaseLayer`"),
        # A step would have been divided by zero, or an epoch would have had no batches.
        (
            f"!obj:kadril.experiment.MLP {{layers: [{LAYER}}}], batch_size: 0}}",
            ke.BadValueError,
            1,
            "batch_size is at least 1",
        ),
        (
            f"!obj:kadril.experiment.MLP {{layers: [{LAYER}}}], num_epochs: -1}}",
            ke.BadValueError,
            1,
            "num_epochs at least 0",
        ),
        (
            f"!obj:kadril.experiment.GB {{layers: [{LAYER}}}], num_pretrain_epochs: -1}}",
            ke.BadValueError,
            1,
            "num_pretrain_epochs and num_initial_epochs are at least 0",
        ),
        (
            f"!obj:kadril.experiment.ConvnetDist {{layers: [{LAYER}}}], groups: 0}}",
            ke.BadValueError,
            1,
            "at least one group of towers, not 0",
        ),
        (
            LAYER + ",\n learning_rate: {type: step, every: 0}}",
            ke.BadValueError,
            2,
            "Expected `int` >= 1",
        ),
        (
            "!obj:kadril.experiment.MLP {layers: [],\n momentum: {kind: constant}}",
            ke.UnknownKeyError,
            2,
            "takes no key 'kind'",
        ),
        (
            "!obj:kadril.experiment.MLP {layers: [],\n momentum: {type: constant, coef: 1.0}}",
            ke.BadValueError,
            2,
            "Expected `float` < 1",
        ),
        (
            "!obj:kadril.experiment.MLP {layers: [],\n momentum: 1.5}",
            ke.BadValueError,
            2,
            "Expected `float` < 1",
        ),
    ],
)
def test_mistakes_are_told_with_their_line(
    text: str, kind: type[ke.ExperimentFileError], line: int, words: str
) -> None:
    with pytest.raises(kind, match=words.replace("[", r"\[")) as caught:
        ke.load_text(text, "an.yaml")
    assert (caught.value.file, caught.value.line) == ("an.yaml", line)
    assert str(caught.value).startswith(f"an.yaml:{line}:")
    assert isinstance(caught.value, ValueError)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ke.ExperimentError, match="cannot be read"):
        ke.load_file(tmp_path / "no.yaml")


def test_every_class_has_neons_path_too() -> None:
    for path, cls in {
        "neon.experiments.fit_predict_err.FitPredictErrorExperiment": ke.FitPredictErrorExperiment,
        "neon.experiments.fit.FitExperiment": ke.FitExperiment,
        "neon.backends._numpy.Numpy": ke.Backend,
        "neon.backends.cpu.CPU": ke.Backend,
        "neon.datasets.mnist.MNIST": ke.MNIST,
        "neon.datasets.cifar10.CIFAR10": ke.CIFAR10,
        "neon.models.convnet_dist.ConvnetDist": ke.ConvnetDist,
        "neon.models.gb.GB": ke.GB,
        "neon.models.gb_dist.GBDist": ke.GBDist,
        "neon.models.mlp_dist.MLPDist": ke.MLPDist,
        "neon.models.layer.LCNLayerDist": ke.LCNLayerDist,
        "neon.models.layer.LayerWithNoBias": ke.LayerWithNoBias,
        "neon.transforms.rectified.RectLin": ke.RectLin,
        "neon.transforms.cross_entropy.CrossEntropy": ke.CrossEntropy,
        "neon.transforms.sum_squared.SumSquaredDiffs": ke.SumSquaredDiffs,
        "gb_dist.GBDist": ke.GBDist,
        "kadril.experiment.models.gb_dist.GBDist": ke.GBDist,
    }.items():
        assert registered(path) is cls, path
    assert all(path.startswith(("kadril.", "neon.")) or path.count(".") == 1 for path in CLASSES)


def test_every_distributed_class_has_a_plain_twin() -> None:
    """The twin takes all that the other one takes, but for the ranks."""
    twins = {cls for cls in CLASSES.values() if cls.__name__.endswith("LayerDist")}
    twins |= {ke.ConvnetDist, ke.GBDist, ke.MLPDist, ke.LayerWithNoBiasDist}
    for cls in twins - {ke.LocalLayerDist}:
        twin = plain_twin(cls)
        assert twin is not None
        assert issubclass(cls, twin)
        assert keys_of(cls).keys() - keys_of(twin).keys() <= {"grid", "groups"}


def test_a_class_of_ones_own() -> None:
    @ke.register
    class Doubled(ke.MLP):
        def __init__(self, factor: int = 2, **settings: object) -> None:
            super().__init__(**settings)  # type: ignore[arg-type]
            self.factor = factor

    text = "!obj:test_experiment_files.Doubled {factor: 3, layers: [" + LAYER + "}]}"
    try:
        assert ke.load_text(text).factor == 3
        with pytest.raises(ke.UnknownKeyError, match="factor, layers"):
            ke.load_text(text.replace("factor", "facto"))
        with pytest.raises(ValueError, match="registered already"):
            ke.register(ke.GB, "test_experiment_files.Doubled")
    finally:
        for path in [path for path, cls in CLASSES.items() if cls is Doubled]:
            del CLASSES[path]


NEON = """
!obj:neon.experiments.fit_predict_err.FitPredictErrorExperiment {
  dist_flag: &df True,
  backend: &be !obj:neon.backends._numpy.Numpy {rng_seed: 0},
  datasets: [
    !obj:neon.datasets.mnist.MNIST {
      dist_flag: *df, backend: *be, repo_path: '/usr/local/data', sample_pct: 10,
      serialized_path: '/usr/local/data/MNIST/mnist_{rank}_{size}.pkl',
    },
  ],
  model: !obj:neon.models.gb_dist.GBDist {
    backend: *be, num_epochs: 4, num_pretrain_epochs: 8, num_initial_epochs: 1,
    batch_size: &bs 100, learning_rate: &lr 0.1, pretraining: &pt True, sparsity: &sp 0.1,
    pretrain_learning_rate: &plr 0.01, tied_weights: &tw True, visualize: False, spot_check: False,
    momentum: {type: linear_monotone, initial_coef: 0.99, start_epoch: 5, saturate_epoch: 5,
               saturated_coef: 0.90},
    pretrain_cost: !obj:neon.transforms.sum_squared.SumSquaredDiffs {},
    cost: !obj:neon.transforms.cross_entropy.CrossEntropy {},
    layers: [
      !obj:neon.models.layer.LocalFilteringLayerDist {
        name: layer0, pretraining: *pt, sparsity: *sp, backend: *be, batch_size: *bs, pos: 0,
        learning_rate: *lr, pretrain_learning_rate: *plr, tied_weights: *tw, nifm: 1, nofm: &n 8,
        ifmshape: [28, 28], fshape: [4, 4], stride: 1,
        weight_init: {type: uniform, low: -0.1, high: 0.1},
      },
      !obj:neon.models.layer.L2PoolingLayerDist {
        name: layer1, backend: *be, batch_size: *bs, pos: 1, nifm: *n, ifmshape: [25, 25],
        fshape: [3, 3], stride: 1,
      },
      !obj:neon.models.layer.LCNLayerDist {
        name: layer2, backend: *be, batch_size: *bs, pos: 2, nifm: *n, ifmshape: [23, 23],
        fshape: [3, 3], stride: 1,
      },
      !obj:neon.models.layer.LayerWithNoBiasDist {
        name: output, backend: *be, batch_size: *bs, pos: 3, learning_rate: *lr, nin: 4232,
        nout: 10, activation: !obj:neon.transforms.logistic.Logistic {},
        weight_init: {type: uniform, low: -0.1, high: 0.1},
      },
    ],
  },
  logging: {level: 20, format: '%(asctime)-15s %(levelname)s:%(module)s - %(message)s'},
}
"""


def test_neons_own_keys_and_paths() -> None:
    experiment = ke.load_text(NEON)
    model = experiment.model
    assert type(model) is ke.GBDist
    assert (model.num_pretrain_epochs, model.num_initial_epochs, model.batch_size) == (8, 1, 100)
    assert model.momentum.at(0) == 0.99
    assert [type(layer).__name__ for layer in model.layers][-1] == "LayerWithNoBiasDist"
    assert all(layer.backend is experiment.backend for layer in model.layers)
    assert experiment.dist_flag
    assert experiment.datasets[0].dist_flag
    plain = ke.load_text(NEON, plain=True)
    assert type(plain.model) is ke.GB
    assert not plain.dist_flag
    assert not plain.datasets[0].dist_flag
    for one, other in zip(model.layers, plain.model.layers, strict=True):
        assert type(one) is not type(other)
        assert isinstance(one, type(other))
    assert (model.layers[0].weights == plain.model.layers[0].weights).all()
    with pytest.raises(ke.DataFileError, match=r"no file train-images.*leave out repo_path"):
        plain.datasets[0].load()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_examples_and_their_twins(path: Path) -> None:
    experiment = ke.load_file(path)
    is_dist = "distarray" in path.name or "towers" in path.name
    assert experiment.dist_flag == is_dist
    experiment.check_flags()
    if "distarray" in path.name:
        twin = ke.load_file(path.with_name(path.resolve().name.replace("_distarray", "")))
        plain = ke.load_file(path, plain=True)
        for one, other in zip(plain.model.layers, twin.model.layers, strict=True):
            assert type(one) is type(other)
            for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
                assert mine.equal(theirs)


def test_overrides_reach_who_takes_them() -> None:
    overrides = {"*": {"num_epochs": 7, "repo_path": "elsewhere", "grid": [2, 1]}}
    experiment = ke.load_text(NEON, overrides=overrides)
    assert experiment.model.num_epochs == 7
    assert experiment.datasets[0].repo_path == "elsewhere"
    assert experiment.model.grid == [2, 1]


def test_flags_that_contradict_each_other() -> None:
    experiment = ke.load_text(NEON)
    experiment.datasets[0].dist_flag = False
    with pytest.raises(ke.ExperimentError, match="False for MNIST: it has to be the same"):
        experiment.check_flags()
    experiment.dist_flag = False
    with pytest.raises(ke.ExperimentError, match="add 'dist_flag: True'"):
        experiment.check_flags()
    plain = ke.load_text(NEON, plain=True)
    plain.dist_flag = True
    with pytest.raises(ke.ExperimentError, match="use GBDist"):
        plain.check_flags()
