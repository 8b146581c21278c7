"""examples/allreduce.py on ranks, and alone."""

from __future__ import annotations

import pytest
from example import launch_example, run_alone, run_example


def check(lines: list[str], num_ranks: int) -> None:
    """Check what all ranks print."""
    total = [float(num_ranks * i + 10 * sum(range(num_ranks))) for i in range(4)]
    mean = sum(range(num_ranks)) / num_ranks
    for rank in range(num_ranks):
        mine = [float(i + 10 * rank) for i in range(4)]
        assert f"rank {rank} of {num_ranks}: {mine} summed over all ranks is {total}" in lines
        assert f"rank {rank}: the mean of all ranks is {[mean] * 3}" in lines
    shared = [line for line in lines if "shared numbers" in line]
    assert len(shared) == num_ranks
    assert all(line.endswith(f"are all {num_ranks * (num_ranks + 1) / 2}: True") for line in shared)


def test_ranks_add_up() -> None:
    check(run_example("allreduce.py", num_ranks=3), 3)


@pytest.mark.long  # README's first program is started for real every day
def test_ranks_of_kadril_run_add_up() -> None:
    check(launch_example("allreduce.py"), 2)


def test_alone() -> None:
    check(run_alone("allreduce.py"), 1)
