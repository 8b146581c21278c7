"""Layers and models on towers do what one process does, explicitly and by autograd.

float64; numbers are about 1, sums have less than 1000 of them, and a step is rounded less than 100
times: results may differ by 1000 * 100 * 2^-53 at most.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experiment_kit import KINDS, make_model, near, part_of, some_images, train

import kadril.experiment as ke
from kadril.experiment.models import Stage
from kadril.testing import ranks
from kadril.world import World

BOUND = 1000 * 100 * 2.0**-53
SHAPE = (2, 10, 9)

PAIRS = [
    (first, second)
    for first in KINDS
    for second in KINDS
    if first != "full" or second == "full"  # nothing on images follows a layer without images
]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_bprop_is_what_autograd_finds(pair: tuple[str, str]) -> None:
    explicit = train(make_model(pair, dist=False), SHAPE)
    by_autograd = train(make_model(pair, dist=False, autograd=True), SHAPE)
    assert near(by_autograd, explicit, BOUND)
    assert not near(train(make_model(pair, dist=False), SHAPE, steps=1), explicit, 1e-9)


@ranks(1, 2, 4)
def test_every_pair_of_layers_on_towers(world: World) -> None:
    """Layers may have a stride, which divides no block, and grids may be of any form."""
    for pair in PAIRS:
        expected = train(make_model(pair, dist=False), SHAPE)
        for autograd in (False, True):
            got = train(make_model(pair, dist=True, autograd=autograd), SHAPE)
            assert near(got, expected, BOUND), (pair, autograd)
    strided, large = ("conv", "l2"), (2, 15, 13)
    expected = train(make_model(strided, dist=False, shape=large, stride=2), large)
    grid = (1, world.size) if world.size < 3 else (2, 2)
    got = train(make_model(strided, dist=True, shape=large, stride=2, grid=grid), large)
    assert near(got, expected, BOUND)


@ranks(2, 4)
def test_fully_connected_layers_are_shared_or_repeated(world: World) -> None:
    """After another one, a layer of many outputs is split by inputs; each rank has a small one."""
    kinds = ("max", "wide", "wide")
    expected = train(make_model(kinds, dist=False), SHAPE)
    for autograd in (False, True):
        model = make_model(kinds, dist=True, autograd=autograd)
        assert near(train(model, SHAPE), expected, BOUND), autograd
        wide, last = model.layers[2:]
        assert wide.nin == wide.weights.shape[1] < wide.whole_shape[1]
        assert last.nin == last.weights.shape[1] == last.whole_shape[1]


@ranks(2)
def test_updates_of_all_layers_are_one_sum(world: World) -> None:
    """Each convolution had a sum of its own, and so had both ways through a small last layer."""
    model = make_model(("conv", "conv", "full"), dist=True)
    model.adjust_for_dist(SHAPE)
    sums: list[str] = []
    for transport in {model.towers.everyone.transport, model.towers.partition.transport}:
        real = transport.allreduce

        def counted(*args: Any, name: str = "", real: Any = real, **others: Any) -> None:
            sums.append(name)
            real(*args, name=name, **others)

        transport.allreduce = counted
    images = part_of(some_images(6, SHAPE), SHAPE, model.towers)
    try:
        model.take_step(images, torch.ones(6, 3).double(), 0, 6)
    finally:
        for transport in {model.towers.everyone.transport, model.towers.partition.transport}:
            del transport.allreduce
    assert sums == ["output of full2", "weights of conv1, conv0"]


@ranks(4)
def test_towers_in_groups(world: World) -> None:
    """Two groups share each batch: the sum of what they find is what one group finds."""
    for kinds in (("conv", "max"), ("local", "l2", "lcn"), ("full", "wide")):
        for autograd in (False, True):
            plain = make_model(kinds, dist=False)
            model = make_model(kinds, dist=True, groups=2, autograd=autograd)
            model.adjust_for_dist(SHAPE)
            images = some_images(7, SHAPE)
            targets = torch.nn.functional.one_hot(torch.arange(7) % 3, 3).double()
            plain.take_step(images, targets, 0, 7)
            towers = model.towers
            rows = towers.rows_of(7)
            assert towers.groups == 2
            assert rows == (slice(0, 4) if towers.group_index == 0 else slice(4, 7))
            mine = part_of(images, SHAPE, towers)
            model.take_step(mine[rows], targets[rows], 0, 7)
            expected = [each["weights"] for each in plain.state()["layers"] if "weights" in each]
            got = [each["weights"] for each in model.state()["layers"] if "weights" in each]
            assert near(got, expected, BOUND), (kinds, autograd)


@ranks(1, 2, 4)
def test_pretraining_on_towers(world: World) -> None:
    shape = (2, 14, 13)
    for tied in (True, False):
        kinds = ("local", "l2", "lcn", "local", "max")
        settings: dict[str, Any] = {
            "model": "GB",
            "num_pretrain_epochs": 2,
            "sparsity": 0.2,
            "pretrain_learning_rate": 0.05,
            "tied_weights": tied,
            "batch_size": 4,
        }
        images = some_images(10, shape)
        plain = make_model(kinds, dist=False, shape=shape, **settings)
        expected = plain.pretrain(images)
        model = make_model(kinds, dist=True, shape=shape, **settings)
        model.adjust_for_dist(shape)
        got = model.pretrain(part_of(images, shape, model.towers))
        assert [each.layer for each in got] == [0, 0, 3, 3]
        for one, other in zip(got, expected, strict=True):
            assert one.cost == pytest.approx(other.cost, rel=BOUND)
            assert one.cost == pytest.approx(one.reconstruction + one.sparsity)
        assert expected[1].cost < expected[0].cost
        filters = model.filters(model.trainable_layers[0])
        assert near([filters], [plain.filters(plain.trainable_layers[0])], BOUND)
        assert torch.allclose(filters.flatten(3).norm(dim=3), torch.ones(3, 12, 11).double())


def test_pretraining_is_a_step_along_the_gradient() -> None:
    """Gradient of the cost of the reconstruction plus the sparsity, as torch finds it."""
    model = make_model(("local", "l2"), dist=False, model="GB", tied_weights=False, sparsity=0.3)
    layer, pooling = model.trainable_layers[0], model.layers[1]
    layer.pretrain_learning_rate = 0.01
    images = some_images(5, SHAPE)
    layer.pretrain_mode(pooling)
    weights = layer.matrix.detach().clone().requires_grad_()
    back = weights.detach().clone().requires_grad_()
    shape, settings = (layer.nofm, layer.ofmsize, layer.fsize), (layer.fshape, 1, 0, layer.stride)
    fields = torch.nn.functional.unfold(layer.as_maps(images), *settings)
    code = torch.einsum("nkp,opk->nop", fields, weights.view(shape))
    back_fields = torch.einsum("nop,opk->nkp", code, back.view(shape))
    rebuilt = torch.nn.functional.fold(back_fields, layer.ifmshape, *settings).flatten(1)
    pooled = pooling.compute(code.flatten(1))
    cost = 0.5 * (rebuilt - images).square().sum() + 0.3 * pooled.sum()
    (cost / 5).backward()
    found = sum(float(part) for part in layer.pretrain(images, ke.SumSquaredDiffs()))
    assert found == pytest.approx(cost.item(), rel=BOUND)
    for got, before in ((layer.matrix, weights), (layer.defilter.weights, back)):
        assert before.grad is not None
        stepped = before.detach() - 0.01 * before.grad
        assert near([got.detach()], [stepped / stepped.norm(dim=1, keepdim=True)], BOUND)


@ranks(1, 2)
def test_how_well_single_outputs_tell_classes_apart(world: World) -> None:
    """An output that is large for one class only has an area of 1, whichever rank has it."""
    shape = (1, 6, 6)
    model = make_model(("local", "max"), dist=True, shape=shape, model="GB", spot_check=True)
    model.adjust_for_dist(shape)
    targets = torch.nn.functional.one_hot(torch.arange(12) % 3, 3).double()
    images = 0.1 * some_images(12, shape).view(12, 6, 6)
    with torch.no_grad():
        for layer in model.trainable_layers:
            layer.matrix.fill_(1 / 3)
    images[::3, 5, 5] += 5  # class 0 is bright in the last corner
    mine = part_of(images.flatten(1), shape, model.towers)
    areas = model.separation(mine, targets)
    assert areas[0] == 1.0
    assert all(0 < area < 1 for area in areas[1:])


def test_only_the_last_layer_learns_at_first() -> None:
    for autograd in (False, True):
        model = make_model(("local", "l2"), dist=False, model="GB", autograd=autograd)
        before = [each["weights"] for each in model.state()["layers"] if "weights" in each]
        targets = torch.nn.functional.one_hot(torch.arange(6) % 3, 3).double()
        for epoch, learns in ((0, [False, True]), (1, [True, True])):
            model.train_batch(Stage("train", epoch), some_images(6, SHAPE), targets, 6)
            after = [each["weights"] for each in model.state()["layers"] if "weights" in each]
            pairs = zip(before, after, strict=True)
            assert [not torch.equal(one, other) for one, other in pairs] == learns
            before = after


@pytest.mark.parametrize("activation", [ke.RectLin, ke.Logistic, ke.Tanh, ke.Linear, ke.Softmax])
def test_activations_and_their_derivatives(activation: type[Any]) -> None:
    function = activation()
    z = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    y = function.apply(z)
    error = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    (expected,) = torch.autograd.grad(y, z, error)
    assert near([function.pull_back(error, z.detach(), y.detach())], [expected], BOUND)


@pytest.mark.parametrize("cost", [ke.CrossEntropy(), ke.SumSquaredDiffs()])
def test_costs_and_their_derivatives(cost: Any) -> None:
    outputs = torch.linspace(0.1, 0.9, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    targets = torch.eye(4, dtype=torch.float64)[:3]
    (expected,) = torch.autograd.grad(cost.loss(outputs, targets), outputs)
    assert near([cost.apply_derivative(outputs.detach(), targets)], [expected], BOUND)
    scale = 12 if cost.is_mean else 1
    value, total = cost.apply_function(outputs, targets), cost.loss(outputs, targets)
    assert value.item() == (total / scale).item()
    sure = torch.tensor([[0.0, 1.0]])
    assert torch.isfinite(cost.apply_function(sure, 1 - sure))


def test_schedules_act() -> None:
    """Neon read momentum, and most of its layers ignored it."""
    momentum = {"type": "linear_monotone", "initial_coef": 0.5, "start_epoch": 1}
    momentum |= {"saturate_epoch": 3, "saturated_coef": 0.9}
    schedule = ke.Momentum(**momentum)
    assert [schedule.at(epoch) for epoch in range(5)] == [0.5, 0.5, 0.7, 0.9, 0.9]
    rate = ke.LearningRate(type="step", initial=0.4, factor=0.5, every=2)
    assert [rate.at(epoch) for epoch in range(5)] == [0.4, 0.4, 0.2, 0.2, 0.1]
    assert ke.LearningRate(type="exponential", initial=0.4, factor=0.5).at(2) == 0.1
    assert ke.LearningRate(type="linear", initial=0.4, final=0.2, epochs=2).at(1) == pytest.approx(
        0.3
    )
    layer = ke.LayerWithNoBias(
        "l", nin=1, nout=1, backend=ke.Backend(0, "float64"), learning_rate=rate
    )
    start = layer.matrix.item()
    for epoch in (0, 2):
        layer.update(
            torch.ones(1, 1, dtype=torch.float64), epoch, {"type": "constant", "coef": 0.5}
        )
    assert layer.matrix.item() == pytest.approx(start - 0.4 - (0.5 * 0.4 + 0.2))
    nesterov = {"type": "nesterov", "initial_coef": 0.5, "saturated_coef": 0.5}
    ahead = ke.LayerWithNoBias(
        "l", nin=1, nout=1, backend=ke.Backend(0, "float64"), learning_rate=1.0
    )
    ahead.update(torch.ones(1, 1, dtype=torch.float64), 0, nesterov)
    assert ahead.matrix.item() == pytest.approx(start - 1 - 0.5)


@ranks(2)
def test_models_that_cannot_be(world: World) -> None:
    backend = ke.Backend(0)
    conv = ke.ConvLayerDist("a", nifm=1, nofm=2, ifmshape=[8, 8], fshape=[3, 3], backend=backend)
    other = ke.ConvLayerDist("b", nifm=3, nofm=2, ifmshape=[6, 6], fshape=[3, 3], backend=backend)
    full = ke.LayerWithNoBiasDist("c", nin=10, nout=2, backend=backend)
    with pytest.raises(ke.ExperimentError, match=r"a makes 2 maps of .*b takes 3"):
        ke.ConvnetDist(layers=[conv, other]).adjust_for_dist()
    conv.pos = full.pos = None
    with pytest.raises(ke.ExperimentError, match="c takes 10 inputs, and gets 72"):
        ke.ConvnetDist(layers=[conv, full]).adjust_for_dist()
    full.pos = conv.pos = None
    with pytest.raises(ke.ExperimentError, match="a is a layer on images, and follows c"):
        ke.ConvnetDist(layers=[full, conv]).adjust_for_dist((1, 5, 2))
    with pytest.raises(ke.ExperimentError, match="give adjust_for_dist"):
        ke.MLPDist(layers=[ke.LayerWithNoBiasDist("d", nin=10, nout=2)]).adjust_for_dist()
    with pytest.raises(ke.ExperimentError, match=r"ConvLayer.*use ConvLayerDist"):
        ke.ConvnetDist(
            layers=[ke.ConvLayer("e", nifm=1, nofm=2, ifmshape=[8, 8], fshape=[3, 3])]
        ).adjust_for_dist()
    with pytest.raises(ke.ExperimentError, match="2 ranks cannot be 3 groups"):
        ke.ConvnetDist(
            layers=[ke.ConvLayerDist("f", nifm=1, nofm=2, ifmshape=[8, 8], fshape=[3, 3])], groups=3
        ).adjust_for_dist()
    with pytest.raises(ke.GridError, match=r"a grid of 1 x 3.*that do: 2 x 1, 1 x 2"):
        ke.ConvnetDist(
            layers=[ke.ConvLayerDist("g", nifm=1, nofm=2, ifmshape=[8, 8], fshape=[3, 3])],
            grid=[1, 3],
        ).adjust_for_dist()
