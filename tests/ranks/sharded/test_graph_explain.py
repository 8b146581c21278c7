"""Explanations of backward graphs: nodes, owners, and bytes."""

from __future__ import annotations

import gc
import inspect
import weakref
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from graph_kit import (
    WIDTH,
    Broken,
    assert_gradients,
    batch,
    make_plan,
    reference,
    total,
    whole,
)
from torch import nn

from kadril.errors import StateError
from kadril.sharded import POS_Trainer
from kadril.sharded.graph import OwnerPlan, explain, kadril_backend, optimize_for
from kadril.testing import ranks
from kadril.world import World

LENGTH = 64
LAYER_BYTES = LENGTH * LENGTH * 8


def layers(num_layers: int) -> nn.Module:
    return whole(nn.Sequential(*[nn.Linear(LENGTH, LENGTH, bias=False) for _ in range(num_layers)]))


def test_bytes_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = layers(6)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    picture = tmp_path / "graph.svg"
    found = explain(model, torch.ones(1, LENGTH, dtype=torch.float64), rank=1, path=picture)
    assert capsys.readouterr().out.strip() == found.text()
    (graph,) = found.graphs
    assert list(graph.owners) == [f"{layer}.weight" for layer in reversed(range(6))]
    assert graph.num_dropped == 3
    # Gradients are all that is large: rows of the batch have 1/64 of the size of a weight.
    assert graph.before[-1].live == 6 * LAYER_BYTES
    assert graph.after[-1].live == 3 * LAYER_BYTES
    assert 6 * LAYER_BYTES <= graph.peak_before < 6.5 * LAYER_BYTES
    assert graph.peak_after < 4.5 * LAYER_BYTES
    assert "0.weight -> rank 0, freed" in found.text()
    assert "1.weight -> this rank, kept" in found.text()
    drawing = ElementTree.parse(picture).getroot()  # noqa: S314 - our own file
    assert len(drawing.findall("{*}polygon")) == 2
    assert len(drawing.findall("{*}line")) == 6 + 1
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"graph.pdf: a picture is written as .svg or .png"):
        found.save(tmp_path / "graph.pdf")
    with pytest.raises(ValueError, match=r"rank is 2; there are ranks 0..1"):
        explain(model, torch.ones(1, LENGTH), rank=2)


def test_phase_one_frees_nothing() -> None:
    x = torch.ones(1, LENGTH, dtype=torch.float64)
    (graph,) = explain(layers(2), x, partition_grad=False, quiet=True).graphs
    assert graph.num_dropped == 0
    assert graph.peak_after == graph.peak_before + 8  # the token
    assert any("kept here unreduced" in note for note in graph.notes.values())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not")
def test_every_graph_is_shown() -> None:
    model = whole(Broken())
    x = torch.ones(2, 6, dtype=torch.float64)
    found = explain(model, x, quiet=True)
    assert len(found.graphs) == 2
    assert "backward graph 2 of 2, rank 0 of 2" in found.text()
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    assert explain(frozen, torch.ones(1, 2), quiet=True).text().startswith("no backward graph")


@ranks(2)
def test_the_owners_are_those_of_the_trainer(world: World, tmp_path: Path) -> None:
    model = layers(3)
    plan = make_plan(model, world)
    found = explain(model, torch.ones(1, LENGTH, dtype=torch.float64), rank=0, quiet=True)
    assert found.rank == world.rank
    assert found.graphs[0].owners == plan.owners
    picture = found.save(tmp_path / f"{world.rank}.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    plan.close()


@ranks(2)
def test_a_model_that_was_compiled_needs_no_example(world: World) -> None:
    """Asked of the model or of what was compiled of it; the example is forgotten with the model."""
    model = layers(2)
    x = torch.ones(3, LENGTH, dtype=torch.float64)
    for each in (model, torch.compile(model, backend="eager")):
        with pytest.raises(ValueError, match=r"optimize_for\(model, x.*explain\(model, x\)"):
            explain(each, quiet=True)
    trainer = POS_Trainer(model, "sgd", {"lr": 0.5}, rule="greedy", world=world)
    options = trainer.generate_graph_pass_options()
    compiled = optimize_for(model, x, inner="eager", **options)
    expected = explain(model, x, quiet=True).text()
    assert f"rank {world.rank} of 2" in expected
    assert explain(compiled, quiet=True).text() == expected
    assert explain(model, quiet=True).text() == expected
    # It has compiled nothing that the trainer's graphs depend on.
    compiled(x).sum().backward()
    trainer.step()


# More than torch is told to compile of one function; eight if it is not told.
LIMIT = 2
MANY = LIMIT + 1


def ask_many_times(world: World, model: nn.Module, num_graphs: int) -> None:
    """Explain a model, and then compile it.

    Owners show whether it was compiled: gradients of others are dropped by compiled graphs alone.
    The sums of whole numbers are exact, also where a weight is in two graphs.
    """
    torch._dynamo.reset()
    x = batch(world.rank)
    plan = make_plan(model, world)
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        answers = [explain(model, x, quiet=True) for _ in range(MANY)]
        check_compiled(world, model, x, plan)
    assert [len(each.graphs) for each in answers] == [num_graphs] * MANY
    assert {each.text() for each in answers} == {answers[0].text()}
    plan.close()


def check_compiled(world: World, model: nn.Module, x: torch.Tensor, plan: OwnerPlan) -> None:
    """Compile a model; its gradients are where they belong."""
    expected = reference(model, world, x)
    run = torch.compile(model, backend=kadril_backend, options={"inner": "eager"})
    total(run(x)).backward()
    assert_gradients(model, plan, expected)


@ranks(2)
def test_it_may_be_asked_many_times(world: World) -> None:
    """The ninth answer was that nothing needs gradients, and later models were not compiled."""
    ask_many_times(world, whole(nn.Sequential(nn.Linear(WIDTH, 3))), num_graphs=1)


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="this torch counts all that was compiled of a model's own code",
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not")
@ranks(2)
def test_it_may_be_asked_many_times_of_several_graphs(world: World) -> None:
    """There the code of the model itself is compiled as well."""
    ask_many_times(world, whole(Broken()), num_graphs=2)


def test_the_parameters_are_not_kept() -> None:
    model = layers(2)
    explain(model, torch.ones(1, LENGTH, dtype=torch.float64), quiet=True)
    weights = [weakref.ref(each) for each in model.parameters()]
    del model
    gc.collect()
    assert [each() for each in weights] == [None, None]


class Detached(nn.Linear):
    """A model whose outputs do not depend on its parameters, as far as autograd knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


def test_no_graph_of_parameters_that_are_trained_is_an_error() -> None:
    """A model not compiled, or not trained by the example: there is nothing true to show."""
    x = torch.ones(1, 2)
    with pytest.raises(StateError, match=r"Detached, though 2 of its parameters.*'weight'"):
        explain(Detached(2, 2), x, quiet=True)
    model = nn.Linear(2, 2)
    with torch._dynamo.config.patch(disable=True):
        with pytest.raises(StateError, match=r"told not to compile it"):
            explain(model, x, quiet=True)
        frozen = Detached(2, 2).requires_grad_(requires_grad=False)
        assert explain(frozen, x, quiet=True).text().startswith("no backward graph")
    assert len(explain(model, x, quiet=True).graphs) == 1
