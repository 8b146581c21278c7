"""Measure training steps on two ranks beside DDP, and write what came out to `benchmarks/results`.

python benchmarks/training/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the harness is

from check_bars import check_bars
from harness.bars import show_times
from harness.claim import Claim
from harness.program import run_program
from harness.results import Measured, Results, Series
from harness.side_by_side import Answers, run_side_by_side, slowest_rounds
from harness.turns import make_series
from settings import SETTINGS

NUM_RANKS = 2
TIMEOUT = 600.0
TIMELINE_ROUNDS = 3  # for each round of the others: a bar of 2 % wants more of them


def measure(num_rounds: int) -> Measured:
    """Time all settings, each in processes of its own."""
    series: list[Series] = []
    facts: dict[str, Any] = {"losses": {}, "digests": {}}
    for workload, settings in SETTINGS.items():
        print(workload, file=sys.stderr, flush=True)
        found = run_side_by_side(
            Path(__file__).with_name("rank.py"),
            {setting: ["--workload", workload, "--setting", setting] for setting in settings},
            num_ranks=NUM_RANKS,
            num_rounds=num_rounds,
            timeout=TIMEOUT,
        )
        for setting, answers in found.items():
            series.append(Series(workload, setting, slowest_rounds(answers)))
        facts["losses"][workload] = {name: mean_losses(each) for name, each in found.items()}
        facts["digests"][workload] = {
            name: [one["digest"] for one in answers] for name, answers in found.items()
        }
    return Measured([*series, *measure_timeline(num_rounds * TIMELINE_ROUNDS)], facts)


def measure_timeline(num_rounds: int) -> list[Series]:
    """Time the same steps with the timeline on and off."""
    print("timeline", file=sys.stderr, flush=True)
    answers = run_program(
        Path(__file__).with_name("timeline_rank.py"),
        ["--rounds", str(num_rounds)],
        num_ranks=NUM_RANKS,
        timeout=TIMEOUT,
    )
    return make_series(answers)


def mean_losses(answers: Answers) -> list[float]:
    """Return the loss of each step, as the mean over ranks."""
    by_step = zip(*(one["losses"] for one in answers), strict=True)
    return [sum(losses) / len(answers) for losses in by_step]


def describe_training(results: Results) -> list[str]:
    """Tell what cannot be avoided, and whether all settings have done the same."""
    lines = []
    kept = results.find("mlp", "alone, heap kept")
    for setting, what in (
        ("kadril", "DistributedOptimizer"),
        ("meeting", "ranks that only wait for each other"),
        ("least", "ranks that add up as many bytes where they are"),
    ):
        ratio = results.ratio(results.find("mlp", setting), kept)
        if ratio is not None:
            lines.append(
                f"mlp, {what}: {show_times(ratio)} of a step without communication in a process"
                " whose allocator keeps what is freed"
            )
    for workload, what in (("mlp", "parameters"), ("chain", "gradients")):
        for setting, losses in results.facts["losses"][workload].items():
            digests = results.facts["digests"][workload][setting]
            are_same = len(set(digests)) == 1
            bits = "the same bits on all ranks" if are_same else "other bits on each rank"
            lines.append(
                f"{workload}, {setting}: loss {losses[0]:.6f} at first, {losses[-1]:.6f} after"
                f" {len(losses)} steps; {what}: {bits} ({digests[0][:8]})"
            )
    return lines


if __name__ == "__main__":
    Claim(
        theme="training",
        title="Training steps beside DDP on gloo",
        num_ranks=NUM_RANKS,
        num_rounds=30,
        measure=measure,
        check=check_bars,
        describe=describe_training,
    ).main()
