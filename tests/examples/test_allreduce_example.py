"""examples/allreduce.py, as `make demo` runs it, and alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "allreduce.py"


def run(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_ranks_add_up(num_ranks: int) -> None:
    lines = run("-m", "kadril", "run", "-np", str(num_ranks), str(PROGRAM))
    total = [float(num_ranks * i + 10 * sum(range(num_ranks))) for i in range(4)]
    mean = sum(range(num_ranks)) / num_ranks
    for rank in range(num_ranks):
        mine = [float(i + 10 * rank) for i in range(4)]
        sum_line = f"[{rank}] rank {rank} of {num_ranks}: {mine} summed over all ranks is {total}"
        assert sum_line in lines
        assert f"[{rank}] rank {rank}: the mean of all ranks is {[mean] * 3}" in lines
    shared = [line for line in lines if "shared numbers" in line]
    assert len(shared) == num_ranks
    assert all(line.endswith(f"are all {num_ranks * (num_ranks + 1) / 2}: True") for line in shared)


def test_alone() -> None:
    lines = run(str(PROGRAM))
    numbers = [0.0, 1.0, 2.0, 3.0]
    assert f"rank 0 of 1: {numbers} summed over all ranks is {numbers}" in lines
    assert "rank 0: 1048576 shared numbers are all 1.0: True" in lines
