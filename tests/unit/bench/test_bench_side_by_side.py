"""Programs in processes of their own take turns, and only one of them works at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness.program import ProgramError, start_on_cores
from harness.side_by_side import run_side_by_side

PROGRAM = """
import os, sys
import numpy as np
import kadril
from harness.program import leave_answer
from harness.side_by_side import wait_for_turns

directory, book, name = sys.argv[1:]
if name == "absent":
    leave_answer(directory, int(os.environ["KADRIL_RANK"]), {"missing": "is not installed"})
    sys.exit()
world = kadril.init()
number = np.zeros(1, dtype=np.int64)

def tell_all(mine):
    number[0] = mine
    world.transport.broadcast(number, 0)
    return int(number[0])

turns = []
for turn in wait_for_turns(directory, world.rank, tell_all):
    if world.rank == 0:
        with open(book, "a") as lines:
            lines.write(f"{name} {turn}\\n")
    if name == "broken" and turn:
        os._exit(3)
    turns.append(turn)
leave_answer(directory, world.rank, {"turns": turns, "python": sys.executable})
kadril.shutdown()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_each_has_its_turn_in_each_round(program: Path, tmp_path: Path) -> None:
    """One of them in another environment, whose Python is this one by another name."""
    book, mine = tmp_path / "book", Path(sys.executable)
    other = mine.with_name("python" if mine.name == "python3" else "python3")
    settings = {name: [str(book), name] for name in ("a", "absent", "b")}
    found = run_side_by_side(
        program,
        settings,
        num_ranks=2,
        num_rounds=3,
        timeout=60.0,
        starts={"b": start_on_cores(2, str(other))},
    )
    assert found["a"] == [{"turns": [0, 1, 2], "python": sys.executable}] * 2
    assert found["b"] == [{"turns": [0, 1, 2], "python": str(other)}] * 2
    assert found["absent"] == [{"missing": "is not installed"}] * 2
    assert book.read_text().split("\n") == ["a 0", "b 0", "b 1", "a 1", "a 2", "b 2", ""]


@pytest.mark.long
def test_a_program_that_ends_too_early(program: Path, tmp_path: Path) -> None:
    settings = {name: [str(tmp_path / "book"), name] for name in ("a", "broken")}
    with pytest.raises(ProgramError, match="ended before its last turn"):
        run_side_by_side(program, settings, num_ranks=1, num_rounds=3, timeout=60.0)
