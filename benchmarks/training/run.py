"""Measure training steps on two ranks beside DDP, and write what came out to `benchmarks/results`.

python benchmarks/training/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from check_bars import check_bars

from kadril.bench.claim import Outcome, run_claim
from kadril.bench.program import run_program
from kadril.bench.sheet import Series, Sheet
from kadril.bench.turns import slowest

NUM_RANKS = 2
TIMEOUT = 3600.0


def measure(num_rounds: int) -> Outcome:
    """Run all settings on two ranks."""
    program = Path(__file__).with_name("rank.py")
    arguments = ["--rounds", str(num_rounds)]
    answers = run_program(program, arguments, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    workloads = answers[0]["samples"]
    series = [
        Series(name, setting, rounds)
        for name in workloads
        for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
    ]
    facts = {
        "losses": {name: mean_losses(answers, name) for name in workloads},
        "digests": {name: list_digests(answers, name) for name in workloads},
    }
    return Outcome(series, facts, answers[0]["missing"])


def mean_losses(answers: list[dict[str, Any]], workload: str) -> dict[str, list[float]]:
    """The loss of each step of each setting, as the mean over ranks."""
    return {
        setting: [
            sum(losses) / len(answers)
            for losses in zip(
                *(one["training"][workload][setting]["losses"] for one in answers), strict=True
            )
        ]
        for setting in answers[0]["training"][workload]
    }


def list_digests(answers: list[dict[str, Any]], workload: str) -> dict[str, list[str]]:
    """The hash over the parameters of each setting at the end, by rank."""
    return {
        setting: [one["training"][workload][setting]["digest"] for one in answers]
        for setting in answers[0]["training"][workload]
    }


def describe_training(sheet: Sheet) -> list[str]:
    """Lines that tell what cannot be avoided, and whether all settings have done the same."""
    lines = []
    for setting, what in (
        ("meeting", "ranks that only wait for each other"),
        ("least", "ranks that add up as many bytes where they are"),
    ):
        ratio = sheet.ratio(sheet.find("mlp", setting), sheet.find("mlp", "alone"))
        if ratio is not None:
            lines.append(f"mlp, {what}: {ratio.value:.3g}x of a step without communication")
    for workload, what in (("mlp", "parameters"), ("chain", "gradients")):
        for setting, losses in sheet.facts["losses"][workload].items():
            digests = sheet.facts["digests"][workload][setting]
            are_same = len(set(digests)) == 1
            bits = "the same bits on all ranks" if are_same else "other bits on each rank"
            lines.append(
                f"{workload}, {setting}: loss {losses[0]:.6f} at first, {losses[-1]:.6f} after"
                f" {len(losses)} steps; {what}: {bits} ({digests[0][:8]})"
            )
    return lines


if __name__ == "__main__":
    sys.exit(
        run_claim(
            sys.argv[1:],
            program=Path(__file__).resolve(),
            title="Training steps beside DDP on gloo",
            num_ranks=NUM_RANKS,
            num_rounds=30,
            measure=measure,
            check=check_bars,
            describe=describe_training,
        )
    )
