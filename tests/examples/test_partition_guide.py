"""docs/guides/partitions.md: its programs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from example import run_on_pool

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "partitions.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


def program_with(words: str) -> str:
    (program,) = [program for program in PROGRAMS if words in program]
    return program


def test_the_first_program_runs() -> None:
    printed = "each worker holds (2, 4, 8, 8) of (2, 4, 16, 16)\n"
    assert run_on_pool(program_with("nn.distribute"), num_ranks=4) == [printed, "", "", ""]


@pytest.mark.long  # four processes load all of torch, as those of README do every day
def test_the_first_program_runs_by_its_command(tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text(program_with("nn.distribute"), encoding="utf-8")
    assert "\nkadril run -np 4 split.py\n" in GUIDE
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", "-np", "4", "split.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0] each worker holds (2, 4, 8, 8) of (2, 4, 16, 16)\n"


def test_the_other_programs_run() -> None:
    layers, primitive = program_with("nn.Conv2d(P_x"), program_with("ops.all_sum_reduce")
    assert len(PROGRAMS) == 3
    assert run_on_pool(layers) == ["(8, 3, 3, 3), loss is known: True\n"] * 2
    assert run_on_pool(primitive) == ["[3.0, 3.0] [2.0, 2.0]\n"] * 2


def test_every_name_exists() -> None:
    import kadril.nn

    names = re.findall(r"`([A-Z]\w+)", GUIDE)
    assert names
    for name in names:
        assert hasattr(kadril.nn, name) or hasattr(kadril, name), name
