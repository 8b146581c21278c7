"""A program is run on bound ranks, and its answers come back by rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.program import ProgramError, run_program

PROGRAM = """
import os, sys
from harness.program import leave_answer

rank = int(os.environ["KADRIL_RANK"])
num_cores = len(os.sched_getaffinity(0))
leave_answer(sys.argv[1], rank, {"rank": rank, "cores": num_cores, "words": sys.argv[2:]})
"""


def test_answers_come_back_by_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    answers = run_program(program, ["--rounds", "3"], num_ranks=2, timeout=60.0)
    assert answers == [{"rank": r, "cores": 1, "words": ["--rounds", "3"]} for r in (0, 1)]


def test_a_program_that_fails_or_lasts_too_long(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(3)")
    with pytest.raises(ProgramError, match=r"program\.py ended with code 3"):
        run_program(program, [], num_ranks=1, timeout=60.0)
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(ProgramError, match=r"took longer than 0\.5 s"):
        run_program(program, [], num_ranks=1, timeout=0.5)
