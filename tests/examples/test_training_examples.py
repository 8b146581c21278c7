"""The one-page examples of training: process sets, uneven data, accumulation."""

from __future__ import annotations

import re

import pytest
from example import run_example


@pytest.mark.parametrize("num_ranks", [3])
def test_process_sets(num_ranks: int) -> None:
    lines = sorted(run_example("process_sets.py", num_ranks=num_ranks))
    (best,) = [line for line in lines if line.startswith("all ")]
    assert best == f"all {num_ranks} ranks: learning rate 0.1 is the better one"
    even, odd = [line for line in lines if line.startswith("ranks ")]
    assert even.startswith(f"ranks {list(range(0, num_ranks, 2))}: learning rate 0.01, loss ")
    assert odd.startswith(f"ranks {list(range(1, num_ranks, 2))}: learning rate 0.1, loss ")


@pytest.mark.parametrize("num_ranks", [3])
def test_uneven_data(num_ranks: int) -> None:
    lines = run_example("uneven_data.py", num_ranks=num_ranks)
    last = num_ranks - 1  # it has the most batches
    epochs = [re.fullmatch(r"epoch \d: loss (\d+\.\d+); rank (\d) .*", line) for line in lines]
    found = [match for match in epochs if match]
    assert [int(match[2]) for match in found] == [last] * 5
    losses = [float(match[1]) for match in found]
    assert losses == sorted(losses, reverse=True)
    weights = {line.partition("weights ")[2] for line in lines if "weights" in line}
    assert len(weights) == 1, "all ranks end with the same weights"
    for rank in range(num_ranks):
        assert any(line.startswith(f"rank {rank}: {2 + 2 * rank} batches") for line in lines)


def steps(lines: list[str]) -> list[tuple[float, float]]:
    """Loss and norm of the gradient of each step."""
    found = [re.match(r"step \d+: loss (\S+), gradient (\S+) before", line) for line in lines]
    return [(float(match[1]), float(match[2])) for match in found if match]


def sums(lines: list[str]) -> set[str]:
    """The sums of weights that the ranks tell."""
    return {line.partition("sum of weights ")[2] for line in lines if "sum of weights" in line}


def test_accumulation_takes_the_steps_of_one_rank() -> None:
    # Adam divides a gradient by its size, so what is rounded away weighs as much as the gradient
    # itself where that is near zero: the first step of 0.02 may differ by a few 1e-7 in such a
    # weight, and twenty steps make a few 1e-5 of it. Without the average over passes or ranks, the
    # first gradient would already be twice as long.
    pair, alone = (run_example("accumulation.py", "--full", num_ranks=n) for n in (2, 1))
    assert len(steps(pair)) == 20
    for ours, theirs in zip(steps(pair), steps(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert len(sums(pair)) == 1


def test_accumulation_in_half_precision() -> None:
    lines = run_example("accumulation.py", num_ranks=2)
    assert steps(lines)[-1][0] < 0.5 * steps(lines)[0][0]
    assert len(sums(lines)) == 1, "all ranks end with the same weights"
