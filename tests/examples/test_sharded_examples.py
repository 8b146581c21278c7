"""The one-page examples of sharded training: eager, and resumed on another number of ranks."""

from __future__ import annotations

import re
from pathlib import Path

from example import run_example


def losses(lines: list[str]) -> list[float]:
    found = [re.match(r"step \d+: loss (\S+), gradient", line) for line in lines]
    return [float(match[1]) for match in found if match]


def ranks_of(lines: list[str]) -> list[tuple[int, int, str]]:
    """Numbers of state, parameters and the sum of weights, of each rank."""
    pattern = r"rank \d: state of (\d+) numbers for (\d+) parameters, sum of weights (\S+)"
    found = [re.fullmatch(pattern, line) for line in lines]
    return [(int(match[1]), int(match[2]), match[3]) for match in found if match]


def test_sharded() -> None:
    two, kept = (run_example("sharded.py", *more) for more in ((), ("--stage", "1")))
    assert losses(two)[-1] < 0.5 * losses(two)[0]
    # Both stages add up the same numbers in the same order.
    assert losses(two) == losses(kept)
    (held, count, weights), (other, _, same) = ranks_of(two)
    assert weights == same, "all ranks have the same weights"
    assert held + other == 2 * count, "Adam has two numbers for each parameter, on one rank"
    assert abs(held - other) < 0.01 * count


def test_resume_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    lines: list[str] = []
    for num_ranks, steps in ((2, 10), (3, 20), (1, 30)):
        lines = run_example(
            "sharded_resume.py", str(tmp_path / "c"), "--steps", str(steps), num_ranks=num_ranks
        )
    assert "goes on at step 20 on 1 ranks" in lines
    (alone,) = run_example("sharded_resume.py", str(tmp_path / "d"), "--steps", "30", num_ranks=1)
    (found,) = [line for line in lines if line.startswith("step 30")]
    # The mean over ranks adds up in another order: float64 leaves some 1e-16 in each of thirty
    # steps, and Adam may make a hundred times as much of a gradient near zero.
    assert abs(float(found.split()[-1]) - float(alone.split()[-1])) < 1e-8
