"""docs/guides/ddl.md: its commands run as they stand, its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example import run_mpi
from forked_program import run_forked

import kadril.ddl
from kadril import errors
from kadril.ddl.options import ALGORITHMS, NAMES

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "ddl.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line for kind, body in FENCES if not kind for line in body.splitlines()]


def lay_out(directory: Path) -> Path:
    """Write the program that the page shows."""
    (program,) = [body for kind, body in FENCES if kind == "python"]
    path = directory / "train.py"
    path.write_text(program, encoding="utf-8")
    return path


def check_learners(lines: list[str]) -> None:
    """Check what the program prints on two learners."""
    told = [re.fullmatch(r"learner (\d) of 2, device (\d), bias (\S+)", line) for line in lines]
    found = [match.groups() for match in told if match]
    assert sorted(each[:2] for each in found) == [("0", "0"), ("1", "1")], lines
    assert len({bias for *_, bias in found}) == 1, "the same parameters on all learners"
    assert sum(line.startswith("ddl: all-reduces 1 to 3") for line in lines) == 1, lines


def test_the_program_runs(tmp_path: Path) -> None:
    assert COMMANDS == ["kadril run -np 2 train.py", "mpirun -n 2 python train.py"]
    check_learners(run_forked(lay_out(tmp_path)))


@pytest.mark.long  # starting Python, torch and MPI takes all of its time; see also ddl_mnist.py
def test_the_program_runs_under_mpirun(tmp_path: Path) -> None:
    done = run_mpi(COMMANDS[1].replace("train.py", str(lay_out(tmp_path))))
    check_learners(done.stdout.splitlines())


def test_the_tables_are_complete() -> None:
    for letter in ALGORITHMS:
        assert f"| `{letter}` |" in GUIDE
    for name in NAMES:
        assert f"`-{name}" in GUIDE
    for name in kadril.ddl.__all__:
        if name[0].islower() and name not in ("is_initialized", "parse_options"):
            assert re.search(rf"\b{name}\b", GUIDE), name


def test_every_name_exists() -> None:
    for name in re.findall(r"`(\w+Error|PeerLost|Stalled)`", GUIDE):
        assert hasattr(errors, name), name
    for name in re.findall(r"\bddl\.(\w+)\(", GUIDE):
        assert hasattr(kadril.ddl, name), name
