"""Measure many small tensors on two ranks, and write what came out to `benchmarks/results`.

python benchmarks/tensors/run.py [--rounds N] [--output DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from pathlib import Path

from check_bars import check_bars

from kadril.bench.bars import print_bars
from kadril.bench.program import ProgramError, run_program
from kadril.bench.report import Idleness, describe_surroundings
from kadril.bench.sheet import Series, Sheet
from kadril.bench.turns import slowest

RESULTS = Path(__file__).parents[1] / "results"
NUM_RANKS = 2
IDLE_SECONDS = 5.0
TIMEOUT = 1800.0


def measure(num_rounds: int, command: str) -> Sheet:
    """Run all settings on two ranks; then two that do nothing."""
    surroundings = describe_surroundings()
    folder = Path(__file__).parent
    arguments = ["--rounds", str(num_rounds)]
    answers = run_program(folder / "rank.py", arguments, num_ranks=NUM_RANKS, timeout=TIMEOUT)
    idle = run_program(
        folder / "idle.py", ["--seconds", str(IDLE_SECONDS)], num_ranks=NUM_RANKS, timeout=TIMEOUT
    )
    idle_world = Idleness(sum(one["cpu"] for one in idle), sum(one["wall"] for one in idle))
    notes = answers[0]["notes"]
    return Sheet(
        theme="tensors",
        title="Many small tensors",
        date=surroundings["date"],
        command=command,
        num_ranks=NUM_RANKS,
        machine=surroundings["machine"],
        load={**surroundings["load"], "end": os.getloadavg()},
        versions=surroundings["versions"],
        missing={},
        facts={"idle_world": dataclasses.asdict(idle_world)},
        series=[
            Series(name, setting, rounds, notes.get(f"{name}: {setting}", ""))
            for name in answers[0]["samples"]
            for setting, rounds in slowest([one["samples"][name] for one in answers]).items()
        ],
    )


def main(argv: list[str]) -> int:
    """Measure, write, check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory")
    words = parser.parse_args(argv)
    command = shlex.join(["benchmarks/tensors/run.py", *argv])
    try:
        sheet = measure(words.rounds, command)
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    bars = list(check_bars(sheet))
    path = sheet.write(words.output, bars)
    are_reached = print_bars(bars)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")
    return 0 if are_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
