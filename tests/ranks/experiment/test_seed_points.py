"""The points of neon's page on distributed models, one test for each.

M: a new model, L: a new layer, D: a new dataset. Numbers are those of the page's lists.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_kit import (
    make_model,
    near,
    part_of,
    some_images,
    some_targets,
    train,
    whole_weights,
)

import kadril.experiment as ke
from kadril.experiment.files.registry import CLASSES
from kadril.partition import balanced_intervals
from kadril.testing import ranks
from kadril.world import World

# See test_experiment_layers.py.
BOUND = 1000 * 100 * 2.0**-53
SHAPE = (2, 10, 9)
LARGE = (2, 14, 13)  # for chains: each layer makes it smaller
EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples"

DIGITS_CNN = """
!obj:kadril.experiment.FitPredictErrorExperiment {
  dist_flag: &df True,
  backend: &be !obj:kadril.experiment.Backend {rng_seed: 0},
  datasets: [!obj:kadril.experiment.Digits {dist_flag: *df, backend: *be, sample_pct: 20}],
  model: !obj:convnet_dist.ConvnetDist {
    backend: *be, num_epochs: 3, batch_size: 50, learning_rate: 0.05,
    layers: [
      !obj:layer.ConvLayerDist {name: a, nifm: 1, nofm: 6, ifmshape: [8, 8], fshape: [3, 3]},
      !obj:layer.MaxPoolingLayerDist {name: b, nifm: 6, ifmshape: [6, 6], fshape: [3, 3]},
      !obj:layer.LayerWithNoBiasDist {name: c, nin: 96, nout: 20,
        activation: !obj:kadril.experiment.RectLin {}},
      !obj:layer.LayerWithNoBiasDist {name: d, nin: 20, nout: 10,
        activation: !obj:kadril.experiment.Logistic {}},
    ],
  },
  logging: {level: 40},
}
"""

DIGITS_GB = """
!obj:kadril.experiment.FitPredictErrorExperiment {
  dist_flag: &df True,
  backend: &be !obj:kadril.experiment.Backend {rng_seed: 0},
  datasets: [!obj:kadril.experiment.Digits {dist_flag: *df, backend: *be, sample_pct: 20}],
  model: !obj:gb_dist.GBDist {
    backend: *be, num_epochs: 2, num_pretrain_epochs: 2, num_initial_epochs: 1, batch_size: 50,
    learning_rate: 0.05, pretrain_learning_rate: 0.01, sparsity: 0.1, tied_weights: True,
    layers: [
      !obj:layer.LocalFilteringLayerDist {name: a, nifm: 1, nofm: 4, ifmshape: [8, 8],
        fshape: [3, 3], pretraining: True},
      !obj:layer.L2PoolingLayerDist {name: b, nifm: 4, ifmshape: [6, 6], fshape: [3, 3]},
      !obj:layer.LCNLayerDist {name: c, nifm: 4, ifmshape: [4, 4], fshape: [3, 3]},
      !obj:layer.LayerWithNoBiasDist {name: d, nin: 64, nout: 10,
        activation: !obj:kadril.experiment.Logistic {}},
    ],
  },
  logging: {level: 40},
}
"""


def run(text: str, plain: bool = False, **model: Any) -> Any:
    """Run an experiment; return it and its result."""
    experiment = ke.load_text(text, plain=plain)
    for key, value in model.items():
        setattr(experiment.model, key, value)
    return experiment, experiment.run()


def test_M0_models_that_there_are() -> None:
    """ConvnetDist and GBDist, and files to change for MNIST and CIFAR-10."""
    for data in ("mnist", "cifar10"):
        for model, cls in (("cnn", ke.ConvnetDist), ("gb", ke.GBDist)):
            (path, *_) = sorted(EXAMPLES.glob(f"{data}_distarray_{model}*.yaml"))
            experiment = ke.load_file(path)
            assert type(experiment.model) is cls
            assert type(experiment.datasets[0]).__name__.lower() == data
            tweaked = ke.load_file(path, {"*": {"num_epochs": 9}})
            assert tweaked.model.num_epochs == 9


def test_M1_distributed_models_derive_from_the_plain_ones() -> None:
    for dist, plain in ((ke.ConvnetDist, ke.Convnet), (ke.GBDist, ke.GB), (ke.MLPDist, ke.MLP)):
        assert issubclass(dist, plain)
        assert issubclass(dist, ke.DistModel)
        assert not issubclass(plain, ke.DistModel)
    assert issubclass(ke.Convnet, ke.MLP)
    assert issubclass(ke.GB, ke.MLP)


@ranks(1, 4)
def test_M2_layers_with_halos_have_an_input(world: World) -> None:
    """A GlobalArray that views are taken of; sizes of layers follow from it."""
    model = make_model(("conv", "l2", "lcn", "local", "max"), dist=True, shape=LARGE)
    before = [layer.global_ifmshape for layer in model.layers[:-1]]
    num_inputs = model.layers[-1].nin
    weights = [None if not hasattr(layer, "weights") else layer.weights for layer in model.layers]
    model.adjust_for_dist()
    for layer, shape in zip(model.sequence[:-1], before, strict=True):
        assert isinstance(layer.input, ke.GlobalArray)
        assert tuple(layer.ifmshape) == layer.input.local_array.ifmshape
        assert layer.input.global_shape == tuple(shape)
        if world.size == 1 and layer.name != "lcn2":
            assert layer.ifmshape == shape
    if world.size == 4:
        assert model.layers[0].ifmshape == [(8, 8), (8, 7), (8, 8), (8, 7)][world.rank]
        assert model.layers[0].weights.shape == weights[0].shape  # filters are shared
        assert len(model.layers[3].weights) < len(weights[3])  # unshared: those of its outputs
        last = model.layers[-1]
        assert last.nin == model.layers[4].nout == last.weights.shape[1] < num_inputs
    # The views are those of the layer's input, forward and backward.
    x = part_of(some_images(3, LARGE), LARGE, model.towers)
    model.fprop(x)
    first = model.layers[0].input.local_array
    assert torch.equal(first.local_image, x)
    assert first.chunk.shape == (3, 2 * first.ifmshape[0] * first.ifmshape[1])
    model.bprop(some_targets(3), x)
    assert model.layers[1].local_error().shape == model.layers[0].output.shape


@ranks(4)
def test_M3_kinds_of_layers_can_be_combined(world: World) -> None:
    """Convolutions, poolings, padded normalisations, unshared filters and fully connected ones.

    All pairs of kinds are in test_experiment_layers.py; here some longer chains.
    """
    for kinds in (
        ("conv", "lcn", "max", "local", "l2"),
        ("lcn", "conv", "average", "lcn", "full"),
        ("local", "l2", "lcn", "full", "full"),
    ):
        expected = train(make_model(kinds, dist=False, shape=LARGE), LARGE)
        for autograd in (False, True):
            got = train(make_model(kinds, dist=True, shape=LARGE, autograd=autograd), LARGE)
            assert near(got, expected, BOUND), (kinds, autograd)


def test_L1_distributed_layers_derive_from_the_plain_ones() -> None:
    twins = {cls for cls in CLASSES.values() if cls.__name__.endswith("LayerDist")}
    names = {cls.__name__ for cls in twins} | {"LayerWithNoBiasDist"}
    assert names >= {
        *("ConvLayerDist", "MaxPoolingLayerDist", "L2PoolingLayerDist", "LCNLayerDist"),
        *("AveragePoolingLayerDist", "LocalFilteringLayerDist", "LayerWithNoBiasDist"),
    }
    for name in names - {"LocalLayerDist"}:
        assert issubclass(getattr(ke, name), getattr(ke, name.removesuffix("Dist")))


# As it stands on the page, but for the class before the colon.
SNIPPET = """
class L2PoolingLayerDist({bases}):

    def fprop(self, inputs_):
        inputs = self.input.get_fprop_view(inputs_)
        super(L2PoolingLayerDist, self).fprop(inputs)

    def bprop(self, error, inputs_, epoch, momentum):
        # redo-ing get_fprop_view for inputs, could cache for speed-up
        inputs = self.input.get_fprop_view(inputs_)
        super(L2PoolingLayerDist, self).bprop(error, inputs, epoch, momentum)
"""


@ranks(1, 4)
def test_L2_a_layer_as_the_page_has_it(world: World) -> None:
    for bases in ("L2PoolingLayer", "LocalLayerDist, L2PoolingLayer"):
        names = {"L2PoolingLayer": ke.L2PoolingLayer, "LocalLayerDist": ke.LocalLayerDist}
        exec(SNIPPET.format(bases=bases), names)  # noqa: S102 - the page's own lines
        expected = train(make_model(("conv", "l2", "lcn"), dist=False), SHAPE)
        for autograd in (False, True):
            model = make_model(("conv", "l2", "lcn"), dist=True, autograd=autograd)
            old = model.layers[1]
            cls: Any = names["L2PoolingLayerDist"]
            model.layers[1] = cls("own", None, 6, 1, old.nifm, old.ifmshape, old.fshape, 1)
            assert near(train(model, SHAPE), expected, BOUND)
            assert model.layers[1].berror_has_halos
            assert not model.layers[2].berror_has_halos  # LCN takes care of its own


def test_L3_layers_have_tags() -> None:
    """Layers are as models and datasets: the suffix Dist is all that changes."""
    plain = (
        DIGITS_GB.replace("Dist", "").replace("gb_dist", "gb").replace("dist_flag: &df True,", "")
    )
    plain = plain.replace("dist_flag: *df, ", "")
    one, other = ke.load_text(DIGITS_GB), ke.load_text(plain)
    for layer, twin in zip(one.model.layers, other.model.layers, strict=True):
        assert type(layer).__name__ == type(twin).__name__ + "Dist"
        assert (layer.name, layer.nin, layer.nout) == (twin.name, twin.nin, twin.nout)


@ranks(2)
def test_D1_dist_flag_of_experiment_and_dataset(world: World) -> None:
    experiment, result = run(DIGITS_CNN)
    assert experiment.datasets[0].inputs["train"].shape == (300, 32)
    assert experiment.model.towers.grid == (2, 1)
    assert len(result.history) == 3
    for wrong in ("dist_flag: *df, backend", "dist_flag: &df True"):
        text = DIGITS_CNN.replace(wrong, wrong.replace("*df", "False").replace("True", "False"))
        with pytest.raises(ke.ExperimentError, match="dist_flag"):
            ke.load_text(text).run()


def test_D2_names_of_distributed_models() -> None:
    """gb.GB becomes gb_dist.GBDist."""
    for prefix in ("", "kadril.experiment.models.", "neon.models."):
        for name, cls in (("GB", "GB"), ("Convnet", "Convnet"), ("MLP", "MLP")):
            assert CLASSES[f"{prefix}{name.lower()}.{cls}"] is getattr(ke, cls)
            assert CLASSES[f"{prefix}{name.lower()}_dist.{cls}Dist"] is getattr(ke, f"{cls}Dist")


@ranks(2)
def test_D3_layers_need_the_suffix(world: World) -> None:
    text = re.sub("layer.ConvLayerDist", "layer.ConvLayer", DIGITS_CNN)
    with pytest.raises(
        ke.ExperimentError, match=r"layer 0 \(a\) is a ConvLayer.*use ConvLayerDist"
    ):
        ke.load_text(text).run()


@ranks(2)
def test_D4_serialized_path_with_rank_and_size(world: World, tmp_path: Path) -> None:
    def load(path: str, **others: Any) -> ke.Digits:
        data = ke.Digits(
            ke.Backend(0), dist_flag=True, serialized_path=str(tmp_path / path), **others
        )
        data.load()
        return data

    data = load("digits_{rank}_of_{size}.npz")
    assert (tmp_path / f"digits_{world.rank}_of_2.npz").exists()
    again = load("digits_{rank}_of_{size}.npz")
    assert torch.equal(data.inputs["train"], again.inputs["train"])
    with pytest.raises(ke.ExperimentError, match=r"on a grid of \(2, 1\).*one of \(1, 2\)"):
        make_model(("conv",), True, (1, 8, 8), num_outputs=10, grid=[1, 2]).fit([data])
    # A file that is damaged on one rank is told on all.
    text = DIGITS_CNN.replace(
        "sample_pct: 20", f"serialized_path: '{tmp_path}/x_{{rank}}_{{size}}'"
    )
    if world.rank == 1:
        (tmp_path / "x_1_2").write_bytes(b"damaged")
    with pytest.raises(ke.DataFileError, match=r"x_1_2 is no dataset"):
        ke.load_text(text).run()
    with pytest.raises(ke.DataFileError, match=r"put \{rank\} and \{size\} into the name"):
        load("digits.npz")
    # A file that was made on another grid, or by a run of another size.
    with pytest.raises(ke.DataFileError, match=r"grid \[2, 1\] there, \[1, 2\] here"):
        load("digits_{rank}_of_{size}.npz", grid=[1, 2])
    mine = tmp_path / f"digits_{world.rank}_of_2.npz"
    content = mine.read_bytes()
    alone = ke.Digits(ke.Backend(0), serialized_path=str(mine))
    with pytest.raises(ke.DataFileError, match="size 2 there, 1 here"):
        alone.load()
    assert mine.read_bytes() == content


@ranks(1, 2, 4)
def test_D5_same_sizes_begin_and_go_on_alike(world: World) -> None:
    """Same seed and sizes: the same weights, samples, costs and errors for any number of ranks."""
    check_same_answer(world)


@pytest.mark.long
@ranks(6, 9, 16, timeout=300.0)  # 16 ranks on two cores that others use took a minute
def test_D5_same_answer_on_more_ranks(world: World) -> None:
    check_same_answer(world)


def check_same_answer(world: World) -> None:
    for text in (DIGITS_CNN, DIGITS_GB):
        plain, expected = run(text, plain=True)
        experiment, result = run(text)
        assert experiment.model.towers.size == world.size
        if world.size == 1:
            assert [vars(record) for record in result.history] == [
                vars(record) for record in expected.history
            ]
            assert result.misclassified == expected.misclassified
            pairs = zip(whole_weights(experiment.model), whole_weights(plain.model), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
        for one, other in zip(result.history, expected.history, strict=True):
            assert one.cost == pytest.approx(other.cost, rel=1e-4), text
        for one, other in zip(result.misclassified, expected.misclassified, strict=True):
            # An example of 297 that lies between two classes may fall on either side.
            assert one == pytest.approx(other, abs=0.7)


@ranks(1, 2, 3, 4, 6)
def test_D6_any_grid_that_fits(world: World) -> None:
    """Neon took 1, 4 or 16 ranks; here any number, on any grid, with parts of different sizes."""
    grids = ke.fitting_grids(world.size, (8, 8))
    assert (world.size, 1) in grids
    for lengths in grids:
        data = ke.Digits(dist_flag=True, grid=list(lengths))
        data.load()
        rows, columns = (balanced_intervals(8, length) for length in lengths)
        sizes = [row.size * column.size for row in rows for column in columns]
        assert data.inputs["test"].shape == (297, sizes[world.rank])
    with pytest.raises(ke.GridError, match=r"a grid of 9 x 1.*grids that do: "):
        ke.Digits(dist_flag=True, grid=[9, 1]).load()
    small = ke.Digits(dist_flag=True)
    small.image_shape = (1, 1, 1)  # type: ignore[misc]
    with contextlib.ExitStack() as stack:
        if world.size > 1:
            words = "numbers of ranks that do: 1"
            stack.enter_context(pytest.raises(ke.GridError, match=words))
        small.adjust_for_dist()


@ranks(4)
def test_D7_reading_gives_the_part_of_this_rank(world: World, tmp_path: Path) -> None:
    import struct

    file = tmp_path / f"images{world.rank}"
    whole = torch.arange(5 * 784).view(5, 28, 28) % 256
    header = struct.pack(">iiii", 2051, 5, 28, 28)
    file.write_bytes(header + bytes(whole.flatten().tolist()))
    data = ke.MNIST(dist_flag=True)
    data.adjust_for_dist()
    part = torch.from_numpy(data.read_image_file(file))
    row, column = divmod(world.rank, 2)
    expected = whole[:, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
    assert torch.equal(part, expected.flatten(1).float() / 255)
    photographs = ke.CIFAR10(dist_flag=True, grid=[1, 4])
    photographs.adjust_for_dist()
    images = (torch.arange(2 * 3072).view(2, 3, 32, 32) % 251).byte()
    records = torch.cat([torch.tensor([[3], [4]]).byte(), images.flatten(1)], 1)
    batch = tmp_path / f"data_batch_{world.rank}.bin"
    batch.write_bytes(bytes(records.flatten().tolist()))
    found, labels = photographs.read_image_file(batch)
    mine = images[:, :, :, 8 * world.rank : 8 * world.rank + 8]
    assert torch.equal(torch.from_numpy(found), mine.flatten(1).float() / 255)
    assert labels.tolist() == [3, 4]


@ranks(4)
def test_D8_loading_keeps_the_part_of_this_rank(world: World) -> None:
    """Together the parts are the images, and no rank holds more than its own."""
    data = ke.Digits(dist_flag=True, grid=[2, 2])
    data.load()
    whole = ke.Digits()
    whole.load()
    assert data.local_shape == (1, 4, 4)
    assert data.inputs["train"].shape == (1500, 16)
    assert data.inputs["train"].untyped_storage().nbytes() == 1500 * 16 * 4
    assert torch.equal(data.targets["train"], whole.targets["train"])
    row, column = divmod(world.rank, 2)
    maps = whole.inputs["train"].view(-1, 8, 8)
    mine = maps[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
    assert torch.equal(data.inputs["train"], mine.flatten(1))
