"""docs/guides/experiments.md: its programs run as they stand, its commands and tables are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kadril.experiment
from kadril.experiment.files.registry import CLASSES
from kadril.experiment.program import parse
from kadril.launch.verbs.experiment_command import OPTIONS
from kadril.testing import ranks
from kadril.world import World

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "experiments.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


@ranks(1, 2)
def test_the_recipes_run(world: World) -> None:
    """A new dataset, a new layer and a new model: the page's programs, one after the other."""
    programs = [body for kind, body in FENCES if kind == "python"]
    assert len(programs) == 3
    known = dict(CLASSES)
    names: dict[str, Any] = {"__name__": "guide"}
    try:
        for program in programs:
            # The ranks of a test are in a world already.
            exec(program.replace("kadril.init()\n", ""), names)  # noqa: S102
    finally:
        CLASSES.clear()
        CLASSES.update(known)
    assert names["model"].towers.size == world.size
    assert names["rates"][0]["test"] < 10
    layer = names["L2PoolingLayerDist"]("own", None, None, 1, 1, [8, 8], [3, 3])
    layer.input = kadril.experiment.GlobalArray(layer)
    layer.adjust_for_dist()
    x = names["data"].inputs["test"][:, : 64 // world.size]
    layer.fprop(x)
    layer.bprop(layer.output, x, 0, None)
    assert layer.local_error().shape == x.shape


def test_the_commands() -> None:
    commands = [line for kind, body in FENCES if not kind for line in body.splitlines()]
    assert commands == [
        "kadril experiment examples/mnist_distarray_cnn.yaml -np 4",
        "kadril experiment new dataset Bars",
        "kadril experiment bars.yaml --with bars.py -np 4",
    ]
    assert (ROOT / "examples" / "mnist_distarray_cnn.yaml").exists()


def test_the_tables_are_complete() -> None:
    words = vars(parse(["file.yaml"]))
    told = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", OPTIONS)}
    shown = {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)", GUIDE)}
    wanted = {"with" if name == "modules" else name for name in words.keys() - {"file"}}
    assert told == wanted
    assert wanted <= shown
    layers = {name for name in kadril.experiment.__all__ if name.endswith("Layer")}
    for name in layers - {"LocalLayer", "LocalDeFilteringLayer"}:
        assert f"`{name}`" in GUIDE
    for path in (ROOT / "examples").glob("*_distarray_*.yaml"):
        assert path.name in GUIDE
