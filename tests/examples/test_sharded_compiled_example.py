"""The one-page example of the graph pass."""

from __future__ import annotations

import re
from pathlib import Path

from example import run_example


def test_sharded_compiled(tmp_path: Path) -> None:
    picture = tmp_path / "graph.svg"
    lines = run_example("sharded_compiled.py", "--picture", str(picture))
    losses = [float(line.partition("loss ")[2]) for line in lines if line.startswith("step ")]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    weights = {line.partition("weights ")[2] for line in lines if "sum of weights" in line}
    assert len(weights) == 1, "all ranks end with the same weights"
    assert sum(": 0 whole gradients" in line for line in lines) == 2
    (before, after) = re.findall(r"\d+", next(line for line in lines if "backward graph" in line))
    assert int(after) < 0.5 * int(before)
    assert picture.read_text().startswith("<svg")
