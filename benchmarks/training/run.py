"""Measure training steps on two ranks beside DDP, and write what came out to `benchmarks/results`.

python benchmarks/training/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from check_bars import check_bars

from kadril.bench.bars import print_bars
from kadril.bench.program import ProgramError, run_program
from kadril.bench.report import describe_surroundings
from kadril.bench.sheet import Series, Sheet
from kadril.bench.turns import slowest

RESULTS = Path(__file__).parents[1] / "results"
NUM_RANKS = 2
TIMEOUT = 3600.0


def measure(num_rounds: int, command: str) -> Sheet:
    """Run all settings on two ranks."""
    surroundings = describe_surroundings()
    program = Path(__file__).with_name("rank.py")
    arguments = ["--rounds", str(num_rounds)]
    answers = run_program(program, arguments, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    workloads = answers[0]["samples"]
    return Sheet(
        theme="training",
        title="Training steps beside DDP on gloo",
        date=surroundings["date"],
        command=command,
        num_ranks=NUM_RANKS,
        machine=surroundings["machine"],
        load={**surroundings["load"], "end": os.getloadavg()},
        versions=surroundings["versions"],
        missing=answers[0]["missing"],
        facts={
            "losses": {name: mean_losses(answers, name) for name in workloads},
            "digests": {name: list_digests(answers, name) for name in workloads},
        },
        series=[
            Series(name, setting, rounds)
            for name in workloads
            for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
        ],
    )


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
    """Lines that tell whether all settings have done the same."""
    lines = []
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


def main(argv: list[str]) -> int:
    """Measure, write, check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
    words = parser.parse_args(argv)
    command = shlex.join(["benchmarks/training/run.py", *argv])
    try:
        sheet = measure(words.rounds, command)
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    bars = list(check_bars(sheet))
    training = describe_training(sheet)
    path = sheet.write(words.output, bars, training)
    print("\n".join((*training, "")))
    are_reached = print_bars(bars)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
    return 0 if are_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
